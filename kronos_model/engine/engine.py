"""The engine: many series at once, a bar at a time."""

import logging
import time
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.scheduler import Scheduler
from kronos_model.engine.sequence import Generation, Sequence, SeriesRequest
from kronos_model.errors import Cancelled, DeadlineExceeded, InputError, KronosError, OutOfMemory

log = logging.getLogger(__name__)


class Runner(Protocol):
    """What computes; ``ModelRunner`` in production, a scripted one in tests."""

    max_context: int

    def run(self, sequences: Many[Sequence]) -> None: ...

    def detokenize(self, sequence: Sequence) -> NDArray[np.float32]: ...

    def release(self, sequence: Sequence) -> None: ...


@dataclass(frozen=True)
class StepReport:
    """What one step did. Bars are counted over all paths; seconds are wall-clock time."""

    num_prefill_bars: int = 0
    num_bars: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class EngineLoad:
    """Sample paths in slots and waiting for them, and how many slots there are."""

    running: int
    waiting: int
    slots: int


class Engine:
    """Takes series at any time and advances all of them by one bar in each ``step``.

    Not thread-safe: one thread owns it, submits, steps and cancels.
    """

    def __init__(self, runner: Runner, *, max_slots: int = 64, max_prefill_tokens: int = 2048) -> None:
        self.runner = runner
        self.scheduler = Scheduler(max_slots, max_prefill_tokens)
        self._live: list[Generation] = []
        self.last_step = StepReport()

    @property
    def load(self) -> EngineLoad:
        """May be read from any thread."""
        scheduler = self.scheduler
        return EngineLoad(scheduler.slots_used, scheduler.paths_waiting, scheduler.max_slots)

    @property
    def has_work(self) -> bool:
        return any(not generation.done for generation in self._live)

    def submit(self, request: SeriesRequest) -> Generation:
        """Queue a series; raises InputError where its horizon exceeds the context."""
        if request.horizon > self.runner.max_context:
            raise InputError(
                f"pred_len {request.horizon} is beyond this model's max_context {self.runner.max_context}; "
                f"ask for at most {self.runner.max_context} bars",
                code="PRED_LEN_TOO_LONG",
                field="pred_len",
                details={"pred_len": request.horizon, "max_context": self.runner.max_context},
            )
        generation = Generation(request)
        self.scheduler.add(generation)
        self._live.append(generation)
        return generation

    def cancel(self, generation: Generation) -> None:
        """End a generation now with Cancelled and free its slots; one that is done stays as it is."""
        self._fail(generation, Cancelled("the forecast was cancelled"))

    def step(self) -> list[Generation]:
        """One more bar for every running sequence; returns the generations that ended with it."""
        self._end_late()
        batch = self.scheduler.schedule()
        now = time.monotonic()
        for sequence in batch.prefill:
            timings = sequence.generation.timings
            timings.admitted = now if timings.admitted is None else timings.admitted
        before = sum(generation.num_bars_done for generation in self._live)
        if len(batch):
            self._run(list(batch))
        self.last_step = StepReport(
            num_prefill_bars=sum(sequence.request.lookback for sequence in batch.prefill),
            num_bars=sum(generation.num_bars_done for generation in self._live) - before,
            decode_s=time.monotonic() - now,
        )
        ended = [generation for generation in self._live if generation.done]
        self._live = [generation for generation in self._live if not generation.done]
        return ended

    def _end_late(self) -> None:
        now = time.monotonic()
        for generation in list(self._live):
            deadline = generation.request.deadline
            if deadline is not None and now >= deadline:
                self._fail(generation, DeadlineExceeded("the deadline passed before the forecast was done"))

    def _run(self, sequences: list[Sequence]) -> None:
        """Run a step; where it fails, each sequence alone, so that one cannot take the others along."""
        try:
            self.runner.run(sequences)
        except Exception as error:  # a kernel may raise anything, and only its own sequence shall fail
            if len(sequences) > 1:
                log.warning(
                    "a step of %d sequences failed, running each alone", len(sequences), exc_info=True
                )
                for sequence in sequences:
                    if not sequence.generation.done:  # another round of it may have failed just now
                        self._run([sequence])
            else:
                log.error("a sequence failed alone", exc_info=True)
                self._fail(sequences[0].generation, _as_kronos_error(error))
            return
        for sequence in sequences:
            self._advance(sequence)

    def _advance(self, sequence: Sequence) -> None:
        generation = sequence.generation
        if generation.done:  # as in _run
            return
        if generation.timings.first_bar is None:
            generation.timings.first_bar = time.monotonic()
        sequence.num_generated += 1
        generation.num_bars_done += sequence.num_paths
        if not sequence.is_complete:
            return
        try:
            paths = self.runner.detokenize(sequence)
        except Exception as error:  # as in _run
            log.error("a sequence failed on its way back to bars", exc_info=True)
            self._fail(generation, _as_kronos_error(error))
            return
        self.scheduler.release(sequence)
        self.runner.release(sequence)
        generation.accept(sequence, paths)

    def _fail(self, generation: Generation, error: KronosError) -> None:
        if not generation.done:
            for sequence in self.scheduler.drop(generation):
                self.runner.release(sequence)
            generation.fail(error)


def _as_kronos_error(error: Exception) -> KronosError:
    if isinstance(error, KronosError):
        return error
    # By name and text, since deciding needs no torch: PyTorch's own class, and what its CPU allocator says.
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):
        return OutOfMemory("the device has too little memory for this series; ask for fewer paths or bars")
    wrapped = KronosError(f"the model failed on this series ({type(error).__name__}); see the worker's log")
    wrapped.__cause__ = error
    return wrapped
