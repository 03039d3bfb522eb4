"""A real worker whose model costs nothing: ``celery -A benchmarks.support.null_worker worker``."""

import numpy as np

from kronos_model.engine import build
from kronos_model.engine.generation import Generation, SeriesRequest
from kronos_model.engine.reports import EngineLoad, StepReport
from kronos_model.errors import Cancelled


class NullEngine:
    """Replaces ``Engine``. One step ends all jobs; every path repeats the last bar."""

    load = EngineLoad(running=0, waiting=0, slots=64)
    last_step = StepReport()
    kind, kind_reason = "torch", None

    def __init__(self) -> None:
        self._waiting: list[Generation] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def prepare(self) -> bool:
        return False

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
            timings.admitted = timings.first_bar = timings.submitted
            shape = (request.sampling.sample_count, request.horizon, request.bars.shape[-1])
            paths = np.broadcast_to(request.bars[-1], shape)
            generation.num_bars_done = generation.num_bars_total
            generation.accept(0, paths)
        return ended


# Before the worker imports the function, so that the product needs no hook for benchmarks.
build.build_engine = lambda *_, **__: NullEngine()  # type: ignore[assignment, misc]

from worker.app import app  # noqa: E402

__all__ = ["app"]
