"""Which slots are free. No torch.

A slot is room for the keys and values of one path's window. Slots are handed out lowest first, and side by
side where there is such a place: what lies side by side is read in one go.
"""


class SlotLedger:
    """``num_slots`` slots, numbered from ``first``."""

    def __init__(self, num_slots: int, first: int = 0) -> None:
        self.num_slots = num_slots
        self._free = set(range(first, first + num_slots))

    @property
    def num_used(self) -> int:
        return self.num_slots - len(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """``count`` slots, which must be free."""
        if count > len(self._free):
            raise ValueError(f"{count} slots are wanted and {len(self._free)} are free")
        free = sorted(self._free)
        runs = (free[i : i + count] for i in range(len(free) - count + 1))
        chosen = next((run for run in runs if run[-1] - run[0] == count - 1), free[:count])
        self._free.difference_update(chosen)
        return tuple(chosen)

    def give_back(self, slots: tuple[int, ...]) -> None:
        """Free slots that were taken."""
        self._free.update(slots)


def num_prompt_slots(num_slots: int) -> int:
    """Slots for prompts that several paths share, beside ``num_slots`` for paths.

    A series that needs all slots for its first round may come down to one path in its last; all others have
    two at least.
    """
    return (num_slots + 1) // 2


def num_slots_among(places: int) -> int:
    """The most slots for paths, where these and those for prompts have so many places together."""
    return max(0, 2 * places // 3)
