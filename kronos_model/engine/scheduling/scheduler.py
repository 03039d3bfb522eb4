"""Decides what a step computes: which sequences decode, and which chunks of other work. No torch.

Slots are shared out fairly between jobs (``allocation``). Chunks go to the job that had the fewest bars in
chunks, of the highest class first, and in turn within a job. In each eighth step the next class is first.
"""

from collections import Counter, deque
from collections.abc import Iterator
from operator import itemgetter

import numpy as np

from kronos_model.engine.generation import Generation
from kronos_model.engine.reports import EngineLoad
from kronos_model.engine.scheduling.allocation import Allocation, Suspension
from kronos_model.engine.scheduling.jobs import Jobs
from kronos_model.engine.scheduling.path_table import Batch, PathTable, cut
from kronos_model.engine.scheduling.shares import CLASS_RATIO, QUANTUM_BARS
from kronos_model.engine.sequence import Chunk, Phase, Sequence

LOWER_CLASS_CHUNKS = 4
"""While a higher class runs, a step computes at most this part of ``max_chunk_bars`` for lower ones."""
STEPS_UNTIL_MORE = 256
"""Steps without a failure, after running out of memory, until twice as much is tried again."""


class StepLimits:
    """Paths that decode together, and bars in chunks, of one step: fewer after it ran out of memory."""

    def __init__(self, max_paths: int, max_chunk_bars: int) -> None:
        self._most = self.paths, self.chunk_bars = max_paths, max_chunk_bars
        self._steps_until_more = STEPS_UNTIL_MORE

    def __str__(self) -> str:
        return f"{self.paths} paths and {self.chunk_bars} bars of prefill"

    @property
    def are_reduced(self) -> bool:
        return (self.paths, self.chunk_bars) != self._most

    def shrink(self, failed: tuple[Chunk, ...] | tuple[Sequence, ...]) -> bool:
        """Compute at most half of what failed at once. Returns whether that is less than before."""
        before = self.paths, self.chunk_bars
        num_paths = sum(work.num_paths for work in failed if isinstance(work, Sequence))
        num_bars = sum(work.num_bars for work in failed if isinstance(work, Chunk))
        if num_paths:
            self.paths = min(self.paths, max(1, num_paths // 2))
        if num_bars:
            self.chunk_bars = min(self.chunk_bars, max(1, num_bars // 2))
        self._steps_until_more = STEPS_UNTIL_MORE
        return (self.paths, self.chunk_bars) != before

    def count_step(self) -> None:
        """Note the end of a step. After ``STEPS_UNTIL_MORE`` without a failure, twice as much is computed."""
        self._steps_until_more -= 1
        if self._steps_until_more <= 0:
            self._steps_until_more = STEPS_UNTIL_MORE
            self.paths = min(2 * self.paths, self._most[0])
            self.chunk_bars = min(2 * self.chunk_bars, self._most[1])


class Scheduler:
    """The sequences that run, and what they compute next.

    ``max_chunk_bars`` bounds what one step computes in addition to the newest bars, and so how long running
    sequences wait for a step. ``num_spare`` of the slots are for small jobs only.
    """

    def __init__(self, num_slots: int, max_context: int, max_chunk_bars: int, num_spare: int = 0) -> None:
        if num_slots <= num_spare or max_chunk_bars < 1:
            raise ValueError("there must be at least one slot and one bar in a chunk")
        self.limits = StepLimits(num_slots, max_chunk_bars)
        self._num_slots, self._num_spare = num_slots, num_spare
        self._jobs = Jobs()
        self._allocation = Allocation(num_slots, max_context, self._jobs, num_spare)
        self._in_chunks: deque[Sequence] = deque()
        self._decoding = PathTable(num_slots, max_context)
        self._num_running: Counter[int] = Counter()  # sequences by rank
        self._accounts = np.zeros(num_slots, dtype=np.int64)  # of the jobs whose paths decode, by slot
        self._num_steps = 0

    @property
    def load(self) -> EngineLoad:
        """The present load. Any thread may read it."""
        num_used = self._allocation.slots.num_used
        return EngineLoad(num_used, self._jobs.num_waiting, self._num_slots - self._num_spare)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences that have slots, or are turned back into bars."""
        return (*self._in_chunks, *self._decoding.sequences)

    def add_request(self, generation: Generation) -> None:
        """Queue a generation."""
        self._allocation.add(generation)

    def schedule(self) -> tuple[list[Suspension], list[Sequence], tuple[Chunk, ...]]:
        """Start a step: what makes room, what got slots, and the chunks to compute before paths decode."""
        self._num_steps += 1
        suspended: list[Suspension] = []
        placed: list[Sequence] = []
        is_due = self._allocation.has_changed or self._num_steps % QUANTUM_BARS == 0
        if is_due and self._jobs.num_waiting and (num_slots := self._num_slots_allowed()) > 0:
            suspended, placed = self._allocation.share_out(num_slots, turn=self._num_steps // QUANTUM_BARS)
        for suspension in suspended:
            self._remove(suspension.sequence)
            self._decoding.clear(suspension.slots)
        for sequence in placed:
            self.advance(sequence)
        for suspension in suspended:
            left = suspension.cut_from
            if left in self._in_chunks and left.phase is Phase.DECODE:  # its other paths are all cached
                self.advance(left)
        return suspended, placed, self._next_chunks()

    def batches(self) -> Iterator[tuple[Sequence, ...]]:
        """The sequences that decode, in one batch, or in several if ``limits.paths`` asks for it."""
        sequences = self._decoding.sequences
        if sequences and self._allocation.slots.num_used <= self.limits.paths:
            yield sequences
            return
        sizes = [sequence.num_paths for sequence in sequences]
        for batch in cut(sequences, sizes, self.limits.paths):
            # A series may have failed meanwhile.
            yield tuple(sequence for sequence in batch if sequence in self._decoding)

    def batch_of(self, sequences: tuple[Sequence, ...]) -> Batch:
        """The rows of sequences that decode together."""
        return self._decoding.batch_of(sequences)

    def add_bars(self, batch: Batch) -> list[Sequence]:
        """Count a bar that was decoded for each path. Returns the sequences whose phase may change."""
        self._decoding.advance(batch)
        self._jobs.for_slots.serve_each(self._accounts[batch.slots])
        changing = []
        for sequence in batch.sequences:
            sequence.num_generated += 1
            sequence.generation.num_bars_done += sequence.num_paths
            if sequence.num_generated == sequence.next_change:
                changing.append(sequence)
        return changing

    def complete(self, chunk: Chunk) -> None:
        """Note that a chunk was computed. A sequence that has all its bars is forgotten."""
        sequence = chunk.sequence
        job = self._jobs[sequence.generation]
        self._jobs.for_chunks.serve(job.account, job.rank, chunk.num_bars)
        sequence.complete(chunk)
        if sequence.is_complete:
            self._remove(sequence)
        else:
            self.advance(sequence)

    def advance(self, sequence: Sequence) -> None:
        """Put a sequence where its phase belongs. It leaves its slots when its paths have all their bars."""
        is_decoding = sequence.phase is Phase.DECODE
        if is_decoding and sequence in self._decoding:
            return
        self._remove(sequence)
        if is_decoding:
            if sequence.shares_prompt:
                self._allocation.set_cached(sequence)
            self._decoding.join(sequence)
            self._num_running[sequence.generation.rank] += 1
            self._accounts[list(sequence.slots)] = self._jobs[sequence.generation].account
            return
        if sequence.phase is Phase.BARS:
            self._allocation.leave(sequence)
        self._in_chunks.append(sequence)
        self._jobs.count_in_chunks(self._jobs[sequence.generation], 1)
        self._num_running[sequence.generation.rank] += 1

    def preempt_newest(self) -> Sequence | None:
        """Take the slots of the newest sequence; its paths start over when fewer others run."""
        running = self.running
        if not running:
            return None
        newest = max(running, key=lambda sequence: sequence.generation.timings.submitted)
        self._remove(newest)
        self._allocation.postpone(newest)
        num_left = sum(sequence.num_paths for sequence in running if sequence is not newest)
        self.limits.paths = max(1, min(self.limits.paths, num_left or self._num_slots))
        return newest

    def finish_request(self, generation: Generation) -> None:
        """Forget a generation that ended or failed."""
        for sequence in generation.sequences:
            self._remove(sequence)
        self._allocation.drop(generation)

    def _num_slots_allowed(self) -> int:
        """After running out of memory, paths that are turned back into bars count too."""
        if not self.limits.are_reduced:
            return self._num_slots
        num_in_bars = sum(sequence.num_paths for sequence in self._in_chunks if sequence.phase is Phase.BARS)
        return self.limits.paths - num_in_bars

    def _next_chunks(self) -> tuple[Chunk, ...]:
        """As many chunks as fit; only the first of them may be a part of its phase's work."""
        turns: list[tuple[int, float, int, Sequence]] = []
        for sequence in self._in_chunks:
            job = self._jobs[sequence.generation]
            turns.append((job.rank, self._jobs.for_chunks.service[job.account], len(turns), sequence))
        turns.sort()
        # The highest class is first, but in each ``CLASS_RATIO``-th step the next, and so on: none starves.
        ranks = [*dict.fromkeys(map(itemgetter(0), turns))]
        number, step = 0, self._num_steps
        while number + 1 < len(ranks) and step % CLASS_RATIO == 0:
            number, step = number + 1, step // CLASS_RATIO
        if number:
            turns.sort(key=lambda turn: turn[0] != ranks[number])
        highest = min(+self._num_running, default=0)
        chunks: list[Chunk] = []
        num_bars = 0
        for rank, _, _, sequence in turns:
            room = self.limits.chunk_bars // (LOWER_CLASS_CHUNKS if rank > highest else 1) - num_bars
            if chunks and sequence.num_bars_left > room:
                break
            chunks.append(sequence.next_chunk(room))
            num_bars += chunks[-1].num_bars
        return tuple(chunks)

    def _remove(self, sequence: Sequence) -> None:
        if sequence in self._decoding:
            self._decoding.leave(sequence)
        elif sequence in self._in_chunks:
            self._in_chunks.remove(sequence)
            self._jobs.count_in_chunks(self._jobs[sequence.generation], -1)
        else:
            return
        self._num_running[sequence.generation.rank] -= 1
