"""The engine: many series at once, a bar at a time."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.generation import Generation, SeriesRequest, as_kronos_error
from kronos_model.engine.reports import EngineKind, EngineLoad, HostMark, Mark, PhaseTimer, StepReport
from kronos_model.engine.scheduling.path_table import Batch
from kronos_model.engine.scheduling.scheduler import Scheduler
from kronos_model.engine.scheduling.slots import Suspension
from kronos_model.engine.sequence import Chunk, Phase, Sequence
from kronos_model.errors import Cancelled, DeadlineExceeded, InputError, KronosError, is_out_of_memory

log = logging.getLogger(__name__)

Work = TypeVar("Work", Chunk, Sequence)


class Runner(Protocol):
    """The computing side of an engine: ``ModelRunner`` in production, a scripted one in tests."""

    max_context: int
    num_slots: int

    def prepare(self) -> bool: ...
    def compute(self, chunks: tuple[Chunk, ...]) -> None: ...
    def decode(self, batch: Batch) -> None: ...
    def suspend(self, suspension: Suspension) -> None: ...
    def leave_slots(self, sequence: Sequence) -> None: ...
    def paths(self, sequence: Sequence) -> NDArray[np.float32]: ...
    def release(self, sequence: Sequence) -> None: ...
    def forget(self, generation: Generation) -> None: ...
    def is_lost(self) -> bool: ...


class Engine:
    """Takes series at any time and advances those that have slots by one bar in each ``step``.

    Not thread-safe: one thread owns it, submits, steps and cancels.

    Args:
        max_chunk_bars: bars that a step computes in addition to the newest ones: of lookbacks, of windows
            that have slid, and of paths that are turned back from tokens into bars.
        num_spare_slots: slots for jobs that want no more than these. So a small job starts at once, and no
            path of a large one is suspended for it.
        new_mark: marks what the device has been sent so far.
        kind, kind_reason: see ``EngineKind``.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        max_chunk_bars: int = 512,
        num_spare_slots: int = 0,
        new_mark: Callable[[], Mark] = HostMark,
        kind: EngineKind = "torch",
        kind_reason: str | None = None,
    ) -> None:
        self.kind, self.kind_reason = kind, kind_reason
        self._runner = runner
        self._scheduler = Scheduler(runner.num_slots, runner.max_context, max_chunk_bars, num_spare_slots)
        self._live: dict[Generation, None] = {}
        self._ended: list[Generation] = []
        self._next_deadline = math.inf
        self._timer = PhaseTimer(new_mark)
        self._began: list[Generation] = []  # had their first bar in this step
        self.last_step = StepReport()

    @property
    def load(self) -> EngineLoad:
        """The present load. Any thread may read it."""
        return self._scheduler.load

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    def prepare(self) -> bool:
        """Use idle time for one piece of work that makes later steps faster. False if there is none."""
        return not self.has_work and self._runner.prepare()

    def submit(self, request: SeriesRequest) -> Generation:
        """Queue a series; raises InputError if its horizon exceeds the context."""
        if request.horizon > (max_context := self._runner.max_context):
            raise InputError(
                f"pred_len {request.horizon} is beyond this model's max_context {max_context}; "
                f"ask for at most {max_context} bars",
                code="PRED_LEN_TOO_LONG",
                field="pred_len",
                details={"pred_len": request.horizon, "max_context": max_context},
            )
        generation = Generation(request)
        self._scheduler.add_request(generation)
        self._live[generation] = None
        self._next_deadline = min(self._next_deadline, generation.deadline)
        return generation

    def run(
        self, requests: Iterable[SeriesRequest], on_bars: Callable[[int], object] = lambda num_bars: None
    ) -> list[Generation]:
        """Submit series and step until all are done; ``on_bars`` receives the bars of each step."""
        generations: list[Generation] = []
        while self.prepare():
            pass
        try:
            generations.extend(map(self.submit, requests))
            while self.has_work:
                self.step()
                on_bars(self.last_step.num_bars)
        finally:
            for generation in generations:  # also those of a refused or interrupted batch
                self.cancel(generation)
        return generations

    def cancel(self, generation: Generation) -> None:
        """End a generation now with Cancelled and free its slots; one that is done stays as it is."""
        self._fail(generation, Cancelled("the forecast was cancelled"))

    def step(self) -> list[Generation]:
        """Compute one more bar for every sequence that decodes; returns the generations that ended.

        Raises an error that the device does not recover from. The engine cannot be used after that.
        """
        self._end_late(time.monotonic())
        self._timer.begin_phase()
        suspended, chunks, batches = self._scheduler.schedule()
        for suspension in suspended:
            self._suspend(suspension)
        num_prefill_bars = self._compute(chunks) if chunks else 0
        self._timer.end_phase("prefill" if num_prefill_bars else None)
        num_bars = sum(map(self._decode, batches))
        self._timer.end_phase("decode" if num_bars else None, self._began)
        self._timer.collect()
        self._began = []
        prefill_s, decode_s = self._timer.take("prefill"), self._timer.take("decode")
        self.last_step = StepReport(num_prefill_bars, num_bars, prefill_s, decode_s)
        ended, self._ended = self._ended, []
        return ended

    def _end_late(self, now: float) -> None:
        if now < self._next_deadline:
            return
        for generation in list(self._live):
            if now >= generation.deadline:
                self._fail(generation, DeadlineExceeded("the deadline passed before the forecast was done"))
        self._next_deadline = min((generation.deadline for generation in self._live), default=math.inf)

    def _compute(self, chunks: tuple[Chunk, ...]) -> int:
        """Compute chunks, and receive the bars that they complete. Returns the number of bars computed."""
        computed = self._attempt(self._runner.compute, chunks)
        for sequence in self._scheduler.update(_going_on(computed)):
            if not sequence.is_complete:
                self._succeeds(self._add_early_bars, sequence)
            elif self._succeeds(self._accept, sequence):
                self._runner.release(sequence)
                if sequence.generation.done:
                    self._forget(sequence.generation)
        return sum(chunk.num_bars for chunk in computed)

    def _decode(self, batch: Batch) -> int:
        """Compute one more bar of every path. Returns the number of bars computed."""
        decoded = self._attempt(lambda some: self._runner.decode(batch.part(some)), batch.sequences)
        if not decoded:
            return 0
        batch = batch.part(decoded)
        for sequence in self._scheduler.update(batch):
            if sequence.generation.done:
                continue
            if sequence.generation.timings.first_bar is None:
                self._began.append(sequence.generation)
            if sequence.phase is Phase.BARS:
                self._succeeds(self._runner.leave_slots, sequence)
        return len(batch.slots)

    def _attempt(self, run: Callable[[tuple[Work, ...]], None], work: tuple[Work, ...]) -> tuple[Work, ...]:
        """Run the work; returns what succeeded. Work that fails is run in halves, so that one fails alone."""
        if not work:
            return ()
        try:
            run(work)
        except Exception as error:  # a kernel may raise anything, and only its own sequence must fail
            if self._is_lost_by(error):
                raise
            may_fit_later = is_out_of_memory(error) and self._scheduler.shrink(work)
            if len(work) > 1:
                log.warning("%d series failed together, trying them in halves: %s", len(work), error)
                half = len(work) // 2
                return _going_on(self._attempt(run, work[:half]) + self._attempt(run, _going_on(work[half:])))
            if not may_fit_later:
                self._give_up(work[0].generation, error)
            return ()
        return work

    def _suspend(self, suspension: Suspension) -> None:
        try:
            self._runner.suspend(suspension)
        except Exception as error:  # as in _attempt
            if self._is_lost_by(error):
                raise
            log.warning("suspended paths start over, because their state cannot be saved: %s", error)
            self._runner.release(suspension.sequence)
            suspension.sequence.start_over()

    def _add_early_bars(self, sequence: Sequence) -> None:
        sequence.generation.add_early_bars(sequence.first_path, self._runner.paths(sequence))

    def _accept(self, sequence: Sequence) -> None:
        paths = self._runner.paths(sequence)
        self._timer.collect()  # the paths are here, so the device has finished their first bar
        sequence.generation.accept(sequence.first_path, paths)

    def _succeeds(self, run: Callable[[Sequence], None], sequence: Sequence) -> bool:
        """Run this for a sequence, unless its generation has ended; if it fails, the generation does."""
        if sequence.generation.done:
            return False
        try:
            run(sequence)
        except Exception as error:  # as in _attempt
            if self._is_lost_by(error):
                raise
            self._give_up(sequence.generation, error)
            return False
        return True

    def _is_lost_by(self, error: Exception) -> bool:
        """Whether the device has failed, so that every further call would fail too."""
        return not is_out_of_memory(error) and self._runner.is_lost()

    def _give_up(self, generation: Generation, error: Exception) -> None:
        log.error("a series failed in a step of its own", exc_info=error)
        self._fail(generation, as_kronos_error(error))

    def _fail(self, generation: Generation, error: KronosError) -> None:
        if not generation.done:
            generation.fail(error)
            self._forget(generation)

    def _forget(self, generation: Generation) -> None:
        del self._live[generation]
        self._ended.append(generation)
        self._scheduler.finish_request(generation)
        self._runner.forget(generation)
        generation.sequences.clear()


def _going_on(work: tuple[Work, ...]) -> tuple[Work, ...]:
    """Without what belongs to series that failed: another of their sequences may have."""
    return tuple(part for part in work if not part.generation.done)
