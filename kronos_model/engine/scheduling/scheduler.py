"""Decides what a step computes: which sequences decode, and which chunks of other work. No torch.

The engine adds requests, schedules a step, updates the scheduler with what was computed, and finishes
requests that end. Slots are shared out fairly between jobs (``slots``). Chunks go to the job that had
the fewest bars in chunks, of the highest class first, and in turn within a job. In each eighth step the next
class is first.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from kronos_model.engine.generation import Generation
from kronos_model.engine.reports import EngineLoad
from kronos_model.engine.scheduling.path_table import Batch, PathTable, cut
from kronos_model.engine.scheduling.shares import CLASS_RATIO, QUANTUM_BARS, Jobs
from kronos_model.engine.scheduling.slots import Allocation, Suspension
from kronos_model.engine.sequence import TO_BARS, Chunk, Phase, Sequence

log = logging.getLogger(__name__)

MIN_CHUNK_BARS = 64
"""A larger chunk that runs out of memory is tried again in parts; one of this size fails."""
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


class ScheduledStep(NamedTuple):
    """What a step does, in this order.

    Iterate over ``batches`` after ``update`` with the chunks: paths whose prompt is cached decode at once.
    """

    suspended: list[Suspension]
    chunks: tuple[Chunk, ...]
    batches: Iterator[Batch]


class Scheduler:
    """The sequences that run, and what they compute next.

    ``max_chunk_bars`` bounds what one step computes in addition to the newest bars, and so how long running
    sequences wait for a step. ``num_spare`` of the slots are for small jobs only.
    """

    def __init__(self, num_slots: int, max_context: int, max_chunk_bars: int, num_spare: int = 0) -> None:
        if num_slots <= num_spare or max_chunk_bars < 1:
            raise ValueError("there must be at least one slot and one bar in a chunk")
        self._limits = StepLimits(num_slots, max_chunk_bars)
        self._is_short_of_memory = False
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

    def add_request(self, generation: Generation) -> None:
        """Queue a generation."""
        self._allocation.add(generation)

    def schedule(self) -> ScheduledStep:
        """Start a step."""
        self._num_steps += 1
        self._limits.count_step()
        preempted = self._preempt_newest() if self._is_short_of_memory else []
        suspended: list[Suspension] = []
        placed: list[Sequence] = []
        is_due = self._allocation.has_changed or self._num_steps % QUANTUM_BARS == 0
        if is_due and self._jobs.num_waiting and (num_slots := self._num_slots_allowed()) > 0:
            suspended, placed = self._allocation.share_out(num_slots, turn=self._num_steps // QUANTUM_BARS)
        for suspension in suspended:
            self._remove(suspension.sequence)
            self._decoding.clear(suspension.slots)
        for sequence in placed:
            self._advance(sequence)
            timings = sequence.generation.timings
            timings.admitted = timings.admitted or time.monotonic()
        for suspension in suspended:
            left = suspension.cut_from
            if left in self._in_chunks and left.phase is Phase.DECODE:  # its other paths are all cached
                self._advance(left)
        return ScheduledStep([*preempted, *suspended], self._next_chunks(), self._batches())

    def update(self, computed: tuple[Chunk, ...] | Batch) -> list[Sequence]:
        """Note that chunks were computed, or a bar of each path of a batch.

        Returns:
            For chunks, the sequences whose bars, all or those so far, are computed. For a batch, those that
            had their first bar or go on in another phase; one that has all its tokens has left its slots.
        """
        return self._add_bars(computed) if isinstance(computed, Batch) else self._complete(computed)

    def finish_request(self, generation: Generation) -> None:
        """Forget a generation that ended or failed."""
        for sequence in generation.sequences:
            self._remove(sequence)
        self._allocation.drop(generation)

    def shrink(self, failed: tuple[Chunk, ...] | tuple[Sequence, ...]) -> bool:
        """Compute less at once after this ran out of memory. Returns whether a later step may compute it.

        Work that cannot be made smaller is tried again only if other work holds memory: then the next step
        preempts the newest sequence.
        """
        is_less = self._limits.shrink(failed)
        if is_less:
            log.warning("out of memory: a step now takes at most %s", self._limits)
        first = failed[0]
        if len(failed) > 1 or (is_less and isinstance(first, Chunk) and first.num_bars > MIN_CHUNK_BARS):
            return True
        is_alone = len(self._running()) == 1 and (isinstance(first, Chunk) or first.num_paths == 1)
        self._is_short_of_memory |= not is_alone
        return not is_alone

    def _running(self) -> tuple[Sequence, ...]:
        """Sequences that have slots, or are turned back into bars."""
        return (*self._in_chunks, *self._decoding.sequences)

    def _batches(self) -> Iterator[Batch]:
        """The sequences that decode, in one batch, or in several after running out of memory."""
        sequences = self._decoding.sequences
        if self._allocation.slots.num_used <= self._limits.paths:
            if sequences:
                yield self._decoding.batch_of(sequences)
            return
        sizes = [sequence.num_paths for sequence in sequences]
        for batch in cut(sequences, sizes, self._limits.paths):
            # A series may have failed meanwhile.
            if going_on := tuple(sequence for sequence in batch if sequence in self._decoding):
                yield self._decoding.batch_of(going_on)

    def _add_bars(self, batch: Batch) -> list[Sequence]:
        self._decoding.advance(batch)
        self._jobs.for_slots.serve_each(self._accounts[batch.slots])
        changing = []
        for sequence in batch.sequences:
            sequence.num_generated += 1
            sequence.generation.num_bars_done += sequence.num_paths
            if sequence.num_generated == sequence.next_change:
                changing.append(sequence)
        for sequence in changing:
            sequence.change_phase()
            self._advance(sequence)
        return changing

    def _complete(self, chunks: tuple[Chunk, ...]) -> list[Sequence]:
        with_bars = []
        for chunk in chunks:
            sequence = chunk.sequence
            job = self._jobs[sequence.generation]
            self._jobs.for_chunks.serve(job.account, job.rank, chunk.num_bars)
            sequence.complete(chunk)
            if sequence.is_complete:
                self._remove(sequence)
            else:
                self._advance(sequence)
            if chunk.phase in TO_BARS and chunk.last == sequence.num_paths:
                with_bars.append(sequence)
        return with_bars

    def _advance(self, sequence: Sequence) -> None:
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

    def _preempt_newest(self) -> list[Suspension]:
        """Take the slots of the newest sequence; its paths start over when fewer others run.

        The oldest sequence is preempted only if it is alone. So it always goes on, and all series end.
        """
        self._is_short_of_memory = False
        running = self._running()
        if not running:
            return []
        log.warning("out of memory: the newest series starts over later")
        newest = max(running, key=lambda sequence: sequence.generation.timings.submitted)
        self._remove(newest)
        self._allocation.postpone(newest)
        num_left = sum(sequence.num_paths for sequence in running if sequence is not newest)
        self._limits.paths = max(1, min(self._limits.paths, num_left or self._num_slots))
        return [Suspension(newest, newest, newest.slots, keeps_state=False)]

    def _num_slots_allowed(self) -> int:
        """After running out of memory, paths that are turned back into bars count too."""
        if not self._limits.are_reduced:
            return self._num_slots
        num_in_bars = sum(sequence.num_paths for sequence in self._in_chunks if sequence.phase is Phase.BARS)
        return self._limits.paths - num_in_bars

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
            room = self._limits.chunk_bars // (LOWER_CLASS_CHUNKS if rank > highest else 1) - num_bars
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
