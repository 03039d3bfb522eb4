"""The state of the engines' thread: engines of one model each, and the jobs inside them."""

import threading
from collections.abc import Callable, Sequence

from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import Generation, SeriesRequest
from kronos_model.engine.reports import EngineLoad


class HostedEngine:
    """A model's engine on the engines' thread. Other threads may read ``model_id`` and ``load``."""

    def __init__(self, model_id: str, engine: Engine) -> None:
        self.model_id = model_id
        self.engine: Engine | None = engine
        self.runs: set[JobRun] = set()
        self.has_stepped = False
        self.live: set[Generation] = set()  # submitted, and not yet observed as ended

    @property
    def load(self) -> EngineLoad:
        """The engine's load; all zero after its removal."""
        engine = self.engine
        return EngineLoad(0, 0, 0) if engine is None else engine.load

    @property
    def has_work(self) -> bool:
        return self.engine is not None and self.engine.has_work


class JobRun:
    """A job inside an engine: its generations, and how it ended.

    ``on_end`` is called once it has ended, on the thread that ends it.
    """

    def __init__(
        self,
        job_id: str,
        requests: Sequence[SeriesRequest],
        hosted: HostedEngine,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self.job_id = job_id
        self.requests = tuple(requests)
        self.hosted = hosted
        self.generations: list[Generation] = []
        self.error: Exception | None = None
        self.failed_series: int | None = None
        self.num_bars_total = sum(r.horizon * r.sampling.sample_count for r in self.requests)
        self._done = threading.Event()
        self._on_end = on_end

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def is_inside(self) -> bool:
        """Whether the job is inside its engine, alive or dead."""
        return self in self.hosted.runs

    @property
    def num_bars_done(self) -> int:
        """Bars done over all paths of all series."""
        return sum(generation.num_bars_done for generation in self.generations)

    def wait(self, timeout_s: float) -> bool:
        """Whether the job ended within the time; ``EngineThread.wait`` also notices a dead thread."""
        return self._done.wait(timeout_s)

    def result(self) -> list[Generation]:
        """The generations of all series, in order. Raises the error that ended the job, if any."""
        if self.error is not None:
            raise self.error
        return self.generations

    def end(self, error: Exception | None = None, failed_series: int | None = None) -> None:
        """End the job. Only the first end counts."""
        if not self.is_done:
            # Without the traceback: its frames refer to the job, so the job and its tensors would stay in
            # memory until the next full garbage collection.
            self.error = None if error is None else error.with_traceback(None)
            self.failed_series = failed_series
            self._done.set()
            self._on_end()
