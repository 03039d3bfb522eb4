"""An engine that computes nothing, for tests of the code around engines."""

import threading
from collections import deque

from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.engine.reports import EngineLoad, StepReport
from kronos_model.errors import Cancelled, InputError, KronosError
from tests.waiting import WAIT_S

MAX_SLOTS = 8
MAX_CONTEXT = 64


class FakeGeneration:
    """A series in a ``FakeEngine``; its forecast is its seed."""

    def __init__(self, request: SeriesRequest) -> None:
        self.request = request
        self.seed = request.sampling.seed
        self.num_paths = request.sampling.sample_count
        self.num_bars_done = 0
        self.done = False
        self.error: KronosError | None = None

    def end(self, error: KronosError | None = None) -> None:
        if not self.done:
            self.error, self.done = error, True


class FakeEngine:
    """Admits in arrival order and gives every running series a bar a step.

    Attributes:
        gate: While it is cleared, steps wait after admission.
        in_step: Set when a step waits in this way.
        poisoned: Seeds whose first step fails.
        defect: Raised from ``step`` itself if not None.
        steps: The seeds that ran in each step.
        log: Names of engines in the order of their steps; several engines may share it.
        num_to_prepare: Pieces of work that idle time is used for.
        prepared_by: The thread that prepared each piece.
    """

    def __init__(self, name: str = "", log: list[str] | None = None) -> None:
        self.name = name
        self.log = [] if log is None else log
        self.gate = threading.Event()
        self.gate.set()
        self.in_step = threading.Event()
        self.poisoned: set[int] = set()
        self.defect: Exception | None = None
        self.steps: list[list[int]] = []
        self.last_step = StepReport()
        self.num_to_prepare = 0
        self.prepared_by: list[threading.Thread] = []
        self._waiting: deque[FakeGeneration] = deque()
        self._running: list[FakeGeneration] = []

    @property
    def load(self) -> EngineLoad:
        return EngineLoad(_num_paths(self._running.copy()), _num_paths(self._waiting.copy()), MAX_SLOTS)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def num_steps(self, seed: int) -> int:
        return sum(seed in seeds for seeds in self.steps)

    def prepare(self) -> bool:
        assert not self.has_work
        if len(self.prepared_by) == self.num_to_prepare:
            return False
        self.in_step.set()
        assert self.gate.wait(WAIT_S)
        self.prepared_by.append(threading.current_thread())
        return True

    def submit(self, request: SeriesRequest) -> FakeGeneration:
        if request.horizon > MAX_CONTEXT:
            raise InputError(f"max_context {MAX_CONTEXT}", code="PRED_LEN_TOO_LONG", field="pred_len")
        generation = FakeGeneration(request)
        self._waiting.append(generation)
        return generation

    def cancel(self, generation: FakeGeneration) -> None:
        generation.end(Cancelled("the forecast was cancelled"))
        self._forget_ended()

    def step(self) -> list[FakeGeneration]:
        self.log.append(self.name)
        everyone = [*self._waiting, *self._running]
        while self._waiting and _num_paths([*self._running, self._waiting[0]]) <= MAX_SLOTS:
            self._running.append(self._waiting.popleft())
        self.in_step.set()
        assert self.gate.wait(WAIT_S)
        if self.defect is not None:
            raise self.defect
        self.steps.append([generation.seed for generation in self._running])
        for generation in self._running:
            generation.num_bars_done += generation.num_paths
            if generation.seed in self.poisoned:
                generation.end(KronosError("a kernel failed"))
            elif generation.num_bars_done == generation.request.horizon * generation.num_paths:
                generation.end()
        self.last_step = StepReport(num_bars=_num_paths(self._running))
        self._forget_ended()
        return [generation for generation in everyone if generation.done]

    def _forget_ended(self) -> None:
        self._waiting = deque(generation for generation in self._waiting if not generation.done)
        self._running = [generation for generation in self._running if not generation.done]


def _num_paths(generations: object) -> int:
    return sum(generation.num_paths for generation in generations)


def params(seed: int, paths: int = 1) -> SamplingParams:
    return SamplingParams(sample_count=paths, seed=seed)
