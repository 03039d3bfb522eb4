"""Which slots are free. No torch.

A slot is room for the keys and values of one path's window. Slots are handed out lowest first, and next to
each other if possible: neighbours are read in one go.
"""


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


def num_prompt_slots(num_slots: int) -> int:
    """Slots for prompts, in addition to ``num_slots`` for paths: each of these may read another prompt."""
    return num_slots


def num_slots_among(places: int) -> int:
    """The most slots for paths, if slots for paths and for prompts share ``places``."""
    return max(0, places // 2)
