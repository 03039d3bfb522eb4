"""An engine that costs nothing: what a worker takes for a job beside computing it."""

from typing import Any

import numpy as np

from kronos_model.engine.engine import EngineLoad, StepReport
from kronos_model.engine.generation import Generation, SeriesRequest
from kronos_model.errors import Cancelled

MAX_SLOTS = 64


class NullEngine:
    """Takes the place of ``Engine``: one step ends whatever waits, each path flat at the last bar given."""

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


def build_null_engine(*_: Any, **__: Any) -> NullEngine:
    """In place of ``kronos_model.engine.build.build_engine``."""
    return NullEngine()
