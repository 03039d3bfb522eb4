"""Which sequences run in a step. Decides over slots and tokens; no torch.

A slot is room for one path. Admission is in arrival order: the first sequence that does not fit holds back
those behind it, so that none starves.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kronos_model.engine.sequence import Generation, Sequence


@dataclass(frozen=True)
class Batch:
    """What runs in one step: sequences whose lookback is still to be computed, and those that go on."""

    prefill: tuple[Sequence, ...]
    decode: tuple[Sequence, ...]

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.prefill
        yield from self.decode

    def __len__(self) -> int:
        return len(self.prefill) + len(self.decode)


class Scheduler:
    """Slots and the two lists: waiting and running.

    ``max_slots`` bounds the paths that run together. ``max_prefill_tokens`` bounds how much lookback one
    step computes, so that running sequences are not held up for long; one series may exceed it alone.
    """

    def __init__(self, max_slots: int, max_prefill_tokens: int) -> None:
        if max_slots < 1 or max_prefill_tokens < 1:
            raise ValueError("max_slots and max_prefill_tokens must be at least 1")
        self.max_slots = max_slots
        self.max_prefill_tokens = max_prefill_tokens
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._slots_used = 0

    @property
    def slots_used(self) -> int:
        return self._slots_used

    @property
    def paths_waiting(self) -> int:
        return sum(sequence.num_paths for sequence in self._waiting.copy())

    def add(self, generation: Generation) -> None:
        """Queue a generation's paths, in rounds of at most ``max_slots``."""
        total = generation.request.sampling.sample_count
        for first in range(0, total, self.max_slots):
            self._waiting.append(Sequence(generation, first, min(self.max_slots, total - first)))

    def schedule(self) -> Batch:
        """Admit what fits and return what runs in this step."""
        decode = tuple(self._running)
        prefill: list[Sequence] = []
        tokens = 0
        while self._waiting:
            head = self._waiting[0]
            tokens += head.request.lookback
            if self._slots_used + head.num_paths > self.max_slots:
                break
            if prefill and tokens > self.max_prefill_tokens:
                break
            self._slots_used += head.num_paths
            prefill.append(self._waiting.popleft())
        self._running.extend(prefill)
        return Batch(tuple(prefill), decode)

    def release(self, sequence: Sequence) -> None:
        """Free the slots of a sequence that ran to its end or failed."""
        self._running.remove(sequence)
        self._slots_used -= sequence.num_paths

    def drop(self, generation: Generation) -> Iterable[Sequence]:
        """Forget a generation, wherever its sequences are; returns those that were running."""
        self._waiting = deque(s for s in self._waiting if s.generation is not generation)
        dropped = [s for s in self._running if s.generation is generation]
        for sequence in dropped:
            self.release(sequence)
        return dropped
