"""Which slots are free, and which of them hold a prompt that several paths read. No torch.

A slot is room for the keys and values of one path's window. Slots are handed out lowest first, and next to
each other if possible: neighbours are read in one go.
"""

from dataclasses import dataclass
from typing import Final

from kronos_model.engine.generation import Generation
from kronos_model.engine.sequence import Sequence

PLACES_PER_PATH: Final = 2
"""Slots in the cache: one for the path, and one for a prompt, as each path may read another."""


class SlotLedger:
    """``num_slots`` slots, numbered from ``first``."""

    def __init__(self, num_slots: int, first: int = 0) -> None:
        self.num_slots = num_slots
        self.num_used = 0
        self._free = set(range(first, first + num_slots))

    def take(self, count: int) -> tuple[int, ...]:
        """Take ``count`` slots; raises ValueError if fewer are free."""
        if count > len(self._free):
            raise ValueError(f"{count} slots are wanted and {len(self._free)} are free")
        free = sorted(self._free)
        chosen = free[:count]
        for last, slot in enumerate(free[count - 1 :], start=count):
            if slot - free[last - count] == count - 1:  # next to each other
                chosen = free[last - count : last]
                break
        self._free.difference_update(chosen)
        self.num_used += count
        return tuple(chosen)

    def give_back(self, slots: tuple[int, ...]) -> None:
        """Return slots that were taken."""
        self._free.update(slots)
        self.num_used -= len(slots)


@dataclass(eq=False)
class Prompt:
    """A prompt's slot, the number of sequences that read it, and whether all of it is cached."""

    slot: int
    num_users: int = 0
    is_cached: bool = False


class Prompts:
    """Slots for prompts, behind those for paths.

    All sequences of a generation share a prompt, if its window never slides. It stays while nothing else
    needs its slot. If the window slides, each sequence changes its own copy.
    """

    def __init__(self, num_slots: int, max_context: int) -> None:
        self._max_context = max_context
        self._ledger = SlotLedger((PLACES_PER_PATH - 1) * num_slots, first=num_slots)
        self._by_slot: dict[int, Prompt] = {}
        self._shared: dict[Generation, Prompt] = {}

    def is_being_cached(self, generation: Generation) -> bool:
        """Whether one of the generation's sequences is caching the prompt that all of them share."""
        prompt = self._shared.get(generation)
        return prompt is not None and prompt.num_users > 0 and not prompt.is_cached

    def join(self, generation: Generation) -> Prompt:
        """The prompt for another sequence of a generation. An unused one makes room for it."""
        prompt = self._shared.get(generation)
        if prompt is None:
            if self._ledger.num_used == self._ledger.num_slots:
                self.drop(next(owner for owner, prompt in self._shared.items() if not prompt.num_users))
            (slot,) = self._ledger.take(1)
            prompt = self._by_slot[slot] = Prompt(slot)
            request = generation.request
            if min(request.lookback, self._max_context) - 1 + request.horizon <= self._max_context:
                self._shared[generation] = prompt
        prompt.num_users += 1
        return prompt

    def set_cached(self, sequence: Sequence) -> bool:
        """Note that a sequence's prompt is cached; returns whether that is new."""
        prompt = self._by_slot[sequence.prompt_slot]
        is_new = not prompt.is_cached
        prompt.is_cached = True
        return is_new

    def leave(self, sequence: Sequence) -> None:
        """Note that a sequence no longer reads its prompt."""
        prompt = self._by_slot[sequence.prompt_slot]
        prompt.num_users -= 1
        if self._shared.get(sequence.generation) is not prompt:
            self._free(prompt)

    def drop(self, generation: Generation) -> None:
        """Free the shared prompt of a generation, if it has one."""
        prompt = self._shared.pop(generation, None)
        if prompt is not None:
            self._free(prompt)

    def _free(self, prompt: Prompt) -> None:
        del self._by_slot[prompt.slot]
        self._ledger.give_back((prompt.slot,))
