"""Decides what a step computes: which sequences decode, and which chunks of other work. No torch.

Slots are shared out fairly between jobs (``allocation``). Chunks go to the job that had the fewest bars in
chunks, of the highest class first, and in turn within a job. In each eighth step the next class is first.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kronos_model.engine.generation import Generation
from kronos_model.engine.reports import EngineLoad
from kronos_model.engine.scheduling.allocation import Allocation, Suspension
from kronos_model.engine.scheduling.jobs import Jobs
from kronos_model.engine.scheduling.path_table import Batch, PathTable
from kronos_model.engine.scheduling.runs import cut
from kronos_model.engine.scheduling.shares import CLASS_RATIO, QUANTUM_BARS
from kronos_model.engine.sequence import Chunk, Phase, Sequence

LOWER_CLASS_CHUNKS = 4
"""While a higher class runs, a step computes at most this part of ``max_chunk_bars`` for lower ones."""


@dataclass(frozen=True)
class StepLimits:
    """How much a step computes at once: paths that decode together, and bars in chunks."""

    paths: int
    chunk_bars: int

    def __str__(self) -> str:
        return f"{self.paths} paths and {self.chunk_bars} bars of prefill"


class Scheduler:
    """The sequences that run, and what they compute next.

    ``max_chunk_bars`` bounds what one step computes in addition to the newest bars, and so how long running
    sequences wait for a step. ``num_spare`` of the slots are for small jobs only.
    """

    def __init__(self, num_slots: int, max_context: int, max_chunk_bars: int, num_spare: int = 0) -> None:
        if num_slots <= num_spare or max_chunk_bars < 1:
            raise ValueError("there must be at least one slot and one bar in a chunk")
        self.num_slots, self._num_spare = num_slots, num_spare
        self.max_chunk_bars = max_chunk_bars
        self.limits = StepLimits(num_slots, max_chunk_bars)
        self._jobs = Jobs()
        self._slots = Allocation(num_slots, max_context, self._jobs, num_spare)
        self._in_chunks: deque[Sequence] = deque()
        self._decoding = PathTable(num_slots, max_context)
        self._num_running: Counter[int] = Counter()  # sequences by rank
        self._accounts = np.zeros(num_slots, dtype=np.int64)  # of the jobs whose paths decode, by slot
        self._num_steps = 0

    @property
    def load(self) -> EngineLoad:
        """The present load. Any thread may read it."""
        return EngineLoad(self._slots.num_used, self._jobs.num_waiting, self.num_slots - self._num_spare)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences that have slots, or are turned back into bars."""
        return (*self._in_chunks, *self._decoding.sequences)

    def add(self, generation: Generation) -> None:
        """Queue a generation."""
        self._slots.add(generation)

    def share_out(self) -> tuple[list[Suspension], list[Sequence]]:
        """Start a step: suspend what must make room, and place what gets slots; returns both."""
        self._num_steps += 1
        is_due = self._slots.has_changed or self._num_steps % QUANTUM_BARS == 0
        if not (is_due and self._jobs.num_waiting and self._num_slots_allowed > 0):
            return [], []
        suspended, placed = self._slots.share_out(
            self._num_slots_allowed, turn=self._num_steps // QUANTUM_BARS
        )
        for suspension in suspended:
            self._remove(suspension.sequence)
            self._decoding.clear(suspension.slots)
        for sequence in placed:
            self._add_to_chunks(sequence)
        for sequence in (*placed, *(one.cut_from for one in suspended)):
            if sequence in self._in_chunks and sequence.is_decoding:
                self._move(sequence)
        return suspended, placed

    def batches(self) -> Iterator[tuple[Sequence, ...]]:
        """The sequences that decode, in one batch, or in several if ``limits.paths`` asks for it."""
        sequences = self._decoding.sequences
        if sequences and self._slots.num_used <= self.limits.paths:
            yield sequences
            return
        for batch in cut(sequences, lambda one: one.num_paths, self.limits.paths):
            yield tuple(one for one in batch if one in self._decoding)  # a series may have failed meanwhile

    def batch_of(self, sequences: tuple[Sequence, ...]) -> Batch:
        """The rows of sequences that decode together."""
        return self._decoding.batch_of(sequences)

    def next_chunks(self) -> tuple[Chunk, ...]:
        """The chunks of the next step: as many as fit.

        Only the first of them may be a part of its phase's work.
        """
        chunks: list[Chunk] = []
        num_bars = 0
        highest = min(+self._num_running, default=0)
        first = self._first_rank_in_chunks()

        def turn(sequence: Sequence) -> tuple[bool, int, float]:
            generation = sequence.generation
            return generation.rank != first, generation.rank, self._jobs.bars_in_chunks(generation)

        for sequence in sorted(self._in_chunks, key=turn):
            is_lower = sequence.generation.rank > highest
            room = self.limits.chunk_bars // (LOWER_CLASS_CHUNKS if is_lower else 1) - num_bars
            if chunks and sequence.num_bars_left > room:
                break
            chunks.append(sequence.next_chunk(room))
            num_bars += chunks[-1].num_bars
        return tuple(chunks)

    def _first_rank_in_chunks(self) -> int:
        """The highest class, but in each ``CLASS_RATIO``-th step the next, and so on: none starves."""
        ranks = sorted({one.generation.rank for one in self._in_chunks})
        number, step = 0, self._num_steps
        while number + 1 < len(ranks) and step % CLASS_RATIO == 0:
            number, step = number + 1, step // CLASS_RATIO
        return ranks[number] if ranks else 0

    def shrink(self, failed: tuple[Chunk, ...] | tuple[Sequence, ...]) -> bool:
        """Compute at most half of what failed at once. Returns whether that is less than before."""
        before = self.limits
        num_paths = sum(one.num_paths for one in failed if isinstance(one, Sequence))
        num_bars = sum(one.num_bars for one in failed if isinstance(one, Chunk))
        self.limits = StepLimits(_halved(before.paths, num_paths), _halved(before.chunk_bars, num_bars))
        return self.limits != before

    def grow(self) -> None:
        """Twice as much, up to what there is."""
        paths, chunk_bars = self.limits.paths, self.limits.chunk_bars
        self.limits = StepLimits(min(2 * paths, self.num_slots), min(2 * chunk_bars, self.max_chunk_bars))

    def add_bars(self, sequences: tuple[Sequence, ...]) -> list[Sequence]:
        """Count a bar that was decoded for each path. Returns the sequences whose phase may change."""
        self._decoding.advance(sequences)
        self._jobs.serve_paths(self._accounts[self.batch_of(sequences).slots])
        changing = []
        for sequence in sequences:
            sequence.num_generated += 1
            sequence.generation.num_bars_done += sequence.num_paths
            if sequence.num_generated == sequence.next_change:
                changing.append(sequence)
        return changing

    def complete(self, chunk: Chunk) -> None:
        """Note that a chunk was computed."""
        self._jobs.serve_chunk(chunk.generation, chunk.num_bars)
        chunk.sequence.complete(chunk)
        self.advance(chunk.sequence)

    def advance(self, sequence: Sequence) -> None:
        """Put a sequence where its phase belongs. It leaves its slots when its paths have all their bars."""
        if not (sequence in self._decoding and sequence.is_decoding):
            self._move(sequence)

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence that ended."""
        self._remove(sequence)
        self._slots.leave(sequence)

    def postpone_newest(self) -> Sequence:
        """Take the slots of the newest sequence; its paths start over when fewer others run."""
        newest = max(self.running, key=lambda one: one.generation.timings.submitted)
        self._remove(newest)
        self._slots.postpone(newest)
        num_left = sum(one.num_paths for one in self.running)
        self.limits = replace(self.limits, paths=max(1, min(self.limits.paths, num_left or self.num_slots)))
        return newest

    def drop(self, generation: Generation) -> None:
        """Forget a generation that ended or failed."""
        for sequence in generation.sequences:
            self._remove(sequence)
        self._slots.drop(generation)

    @property
    def _num_slots_allowed(self) -> int:
        """After running out of memory, paths that are turned back into bars count too."""
        if self.limits == StepLimits(self.num_slots, self.max_chunk_bars):
            return self.num_slots
        num_in_bars = sum(one.num_paths for one in self._in_chunks if one.phase is Phase.BARS)
        return self.limits.paths - num_in_bars

    def _move(self, sequence: Sequence) -> None:
        self._remove(sequence)
        if sequence.phase is Phase.BARS:
            self._slots.leave(sequence)
        if sequence.is_decoding:
            self._slots.set_cached(sequence)
            self._decoding.join(sequence)
            self._num_running[sequence.generation.rank] += 1
            self._accounts[list(sequence.slots)] = self._jobs[sequence.generation].account
        else:
            self._add_to_chunks(sequence)

    def _add_to_chunks(self, sequence: Sequence) -> None:
        self._in_chunks.append(sequence)
        self._jobs.count_in_chunks(self._jobs[sequence.generation], 1)
        self._num_running[sequence.generation.rank] += 1

    def _remove(self, sequence: Sequence) -> None:
        if sequence in self._decoding:
            self._decoding.leave(sequence)
        elif sequence in self._in_chunks:
            self._in_chunks.remove(sequence)
            self._jobs.count_in_chunks(self._jobs[sequence.generation], -1)
        else:
            return
        self._num_running[sequence.generation.rank] -= 1


def _halved(limit: int, amount: int) -> int:
    return min(limit, max(1, amount // 2)) if amount else limit
