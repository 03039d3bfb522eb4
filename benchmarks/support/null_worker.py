"""A real worker whose model costs nothing: ``celery -A benchmarks.support.null_worker worker``."""

import numpy as np

from kronos_model.engine import build
from kronos_model.engine.engine import EngineLoad, StepReport
from kronos_model.engine.generation import Generation, SeriesRequest
from kronos_model.errors import Cancelled

MAX_SLOTS = 64


class NullEngine:
    """Replaces ``Engine``. One step ends all jobs; every path repeats the last bar."""

    def __init__(self) -> None:
        self._waiting: list[Generation] = []
        self.last_step = StepReport()

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    @property
    def load(self) -> EngineLoad:
        return EngineLoad(running=0, waiting=len(self._waiting), slots=MAX_SLOTS)

    def submit(self, request: SeriesRequest) -> Generation:
        generation = Generation(request)
        self._waiting.append(generation)
        return generation

    def cancel(self, generation: Generation) -> None:
        if not generation.done:
            self._waiting.remove(generation)
            generation.fail(Cancelled("the forecast was cancelled"))

    def step(self) -> list[Generation]:
        ended, self._waiting = self._waiting, []
        for generation in ended:
            request, timings = generation.request, generation.timings
            num_paths = request.sampling.sample_count
            timings.admitted = timings.first_bar = timings.submitted
            paths = np.broadcast_to(request.bars[-1], (num_paths, request.horizon, request.bars.shape[-1]))
            generation.num_bars_done = generation.num_bars_total
            generation.accept(0, paths)
        return ended


# Before the worker imports the function, so that the product needs no hook for benchmarks.
build.build_engine = lambda *_, **__: NullEngine()  # type: ignore[assignment, misc]

from worker.app import app  # noqa: E402

__all__ = ["app"]
