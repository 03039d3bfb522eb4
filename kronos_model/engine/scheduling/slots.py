"""Which slots are free. No torch.

A slot is room for the keys and values of one path's window. Slots are handed out lowest first, and next to
each other if possible: neighbours are read in one go.
"""

from typing import Final

PLACES_PER_PATH: Final = 2
"""Slots in the cache: one for the path, and one for a prompt, as each path may read another."""


class SlotLedger:
    """``num_slots`` slots, numbered from ``first``."""

    def __init__(self, num_slots: int, first: int = 0) -> None:
        self.num_slots = num_slots
        self._free = set(range(first, first + num_slots))

    @property
    def num_used(self) -> int:
        return self.num_slots - len(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """Take ``count`` slots; raises ValueError if fewer are free."""
        if count > len(self._free):
            raise ValueError(f"{count} slots are wanted and {len(self._free)} are free")
        free = sorted(self._free)
        runs = (free[i : i + count] for i in range(len(free) - count + 1))
        chosen = next((run for run in runs if run[-1] - run[0] == count - 1), free[:count])
        self._free.difference_update(chosen)
        return tuple(chosen)

    def give_back(self, slots: tuple[int, ...]) -> None:
        """Return slots that were taken."""
        self._free.update(slots)
