"""The only thread that uses engines: it submits, steps and cancels. Nothing in it waits for Redis."""

import logging
import math
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NoReturn, Protocol

from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import Generation, SeriesRequest
from kronos_model.engine.reports import EngineLoad, StepReport
from kronos_model.errors import Cancelled, KronosError
from worker.inference.watchdog import Watchdog

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0


class EngineDied(Exception):
    """The engine thread has ended. A job that ``was_inside`` an engine may be the cause."""

    def __init__(self, *, was_inside: bool = False) -> None:
        super().__init__("the engine has stopped")
        self.was_inside = was_inside


class EngineObserver(Protocol):
    """Observes engines. Its methods run on the engine thread and must be short."""

    def observe_step(self, model_id: str, report: StepReport, load: EngineLoad) -> None:
        """Called after each step of this model's engine."""

    def observe_generation(self, model_id: str, generation: Generation) -> None:
        """Called once for each series of a job that ended, with its paths or an error."""


class ModelEngine:
    """A model's engine on the engine thread. Other threads may read ``model_id`` and ``load``."""

    def __init__(self, model_id: str, engine: Engine) -> None:
        self.model_id = model_id
        self.engine: Engine | None = engine
        self.runs: set[JobRun] = set()
        self.has_stepped = False

    @property
    def load(self) -> EngineLoad:
        """The engine's load; all zero after its removal."""
        engine = self.engine
        return EngineLoad(0, 0, 0) if engine is None else engine.load

    @property
    def has_work(self) -> bool:
        return self.engine is not None and self.engine.has_work


class JobRun:
    """A job for an engine. ``on_end`` is called once it has ended, on the thread that ends it."""

    def __init__(
        self,
        job_id: str,
        requests: Sequence[SeriesRequest],
        model: ModelEngine,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self.job_id, self.requests, self.model = job_id, requests, model
        self.generations: list[Generation] = []
        self.is_done = False
        self.error: Exception | None = None
        self.failed_series: int | None = None
        self._on_end = on_end

    @property
    def num_bars_total(self) -> int:
        return sum(request.horizon * request.sampling.sample_count for request in self.requests)

    @property
    def num_bars_done(self) -> int:  # over all paths of all series
        return sum(generation.num_bars_done for generation in self.generations)

    def end(self, error: Exception | None = None, failed_series: int | None = None) -> None:
        """End the job. Only the first end counts."""
        if not self.is_done:
            # Without the traceback: its frames refer to the job, so the job and its tensors would stay in
            # memory until the next full garbage collection.
            self.error = None if error is None else error.with_traceback(None)
            self.failed_series = failed_series
            self.is_done = True
            self._on_end()


class EngineThread:
    """Runs jobs on any number of engines. All methods may be called from any thread.

    Each engine that has work gets one step in turn, so that none waits for another's queue to empty. While no
    engine has work, they prepare for it, piece by piece.

    Args:
        watchdog: Detects a step that hangs; by default there is no limit.
        on_admission: Called on the engine thread with a job's id when an engine's load counts it.
        on_death: Called on the engine thread when it dies, before its jobs end.
    """

    def __init__(
        self,
        observers: Sequence[EngineObserver] = (),
        *,
        watchdog: Watchdog | None = None,
        on_admission: Callable[[str], None] = lambda job_id: None,
        on_death: Callable[[], None] = lambda: None,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._observers = list(observers)
        self._watchdog = watchdog or Watchdog(math.inf, on_hang=lambda seen_s: None)
        self._on_admission, self._on_death, self._on_start = on_admission, on_death, on_start
        self._models: list[ModelEngine] = []  # replaced, never changed, so that any thread may read it
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_prepared = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kronos-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def loads(self) -> dict[str, EngineLoad]:
        """Each engine's load, by model id."""
        return {model.model_id: model.load for model in self._models}

    @property
    def runs(self) -> list[JobRun]:
        """The jobs inside engines, the most advanced first."""
        runs = [run for model in self._models for run in model.runs.copy()]
        return sorted(runs, key=lambda run: (-run.num_bars_done / run.num_bars_total, run.job_id))

    def add(self, model: ModelEngine) -> None:
        """Add an engine between two turns. From now on only the engine thread uses it."""

        def add() -> None:
            self._models = [*self._models, model]
            self._is_prepared.clear()

        self._run_and_wait(add)

    def remove(self, model: ModelEngine) -> None:
        """Remove an engine between two turns. Jobs that it still runs end with EngineDied."""

        def remove() -> None:
            self._models = [other for other in self._models if other is not model]
            for run in list(model.runs):
                self._end(run, EngineDied())
            model.engine = None

        self._run_and_wait(remove)

    def wait_until_prepared(self) -> None:
        """Wait until the engines are prepared as far as they can be, or a job needs them."""
        self._await(self._is_prepared)

    def submit(self, runs: Sequence[JobRun]) -> None:
        """Send jobs to their engines. Returns at once."""
        self._commands.put(partial(self._admit, runs))

    def has_ended(self, run: JobRun) -> bool:
        """Whether the job has ended. If the engine thread is dead, it ends with EngineDied."""
        if not run.is_done and not self.is_alive:
            run.end(EngineDied())
        return run.is_done

    def cancel(self, run: JobRun) -> None:
        """End a job with Cancelled at the next step."""
        self._commands.put(partial(self._end, run, Cancelled("the job was cancelled, as asked")))

    def die(self, reason: str) -> None:
        """End the thread as if an engine had failed: all jobs go back to the queue."""

        def fail() -> NoReturn:
            raise RuntimeError(reason)

        self._commands.put(fail)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Let the engines finish their jobs, then end their thread."""
        self._commands.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._on_start()
            self._loop()
        except BaseException:  # no job may wait for ever, however this thread ends
            log.critical("the engines' thread died: its jobs go back to the queue", exc_info=True)
            self._on_death()
        finally:
            for run in self.runs:
                run.end(EngineDied())

    def _loop(self) -> None:
        stopping = False
        while True:
            is_busy = any(model.has_work for model in self._models)
            if stopping and not is_busy:
                return
            if not is_busy and self._commands.empty() and self._prepare():
                continue
            stopping = self._take_commands(block=not is_busy) or stopping
            for model in self._models:
                if model.has_work:
                    with self._watchdog.step(is_first=not model.has_stepped):
                        self._step(model)

    def _prepare(self) -> bool:
        """Let an engine use the idle time; False if none has anything to prepare."""
        for model in self._models:
            with self._watchdog.step(is_first=True):
                if model.engine is not None and model.engine.prepare():
                    return True
        self._is_prepared.set()
        return False

    def _take_commands(self, *, block: bool) -> bool:
        """Run the commands of other threads; True if one asks to stop."""
        while block or not self._commands.empty():
            command, block = self._commands.get(), False
            if command is None:
                return True
            with self._watchdog.step():
                command()
        return False

    def _run_and_wait(self, command: Callable[[], None]) -> None:
        """Wait until the engine thread has run the command, or is dead."""
        done = threading.Event()
        self._commands.put(command)
        self._commands.put(done.set)
        self._await(done)

    def _await(self, event: threading.Event) -> None:
        while not event.wait(CHECK_INTERVAL_S) and self.is_alive:
            pass

    def _admit(self, runs: Sequence[JobRun]) -> None:
        self._is_prepared.set()
        for run in runs:
            engine = run.model.engine
            if engine is None:
                run.end(EngineDied())
            if engine is None or run.is_done:  # it was cancelled before
                continue
            run.model.runs.add(run)
            try:
                run.generations.extend(map(engine.submit, run.requests))
            except KronosError as error:
                self._end(run, error, len(run.generations))
            else:
                self._on_admission(run.job_id)

    def _step(self, model: ModelEngine) -> None:
        """Make a step, then end the jobs that it completed, and those that have a failed series."""
        assert model.engine is not None
        ended = set(model.engine.step())
        model.has_stepped = True
        report, load = model.engine.last_step, model.engine.load
        for run in [run for run in model.runs if not ended.isdisjoint(run.generations)] if ended else ():
            failed = [place for place, series in enumerate(run.generations) if series.error is not None]
            if failed:
                self._end(run, run.generations[failed[0]].error, failed[0])
            elif all(generation.done for generation in run.generations):
                self._end(run)
        self._notify("observe_step", model.model_id, report, load)

    def _end(self, run: JobRun, error: Exception | None = None, failed_series: int | None = None) -> None:
        """End a job unless it has ended, and free the slots of its series."""
        if run.is_done:
            return
        run.model.runs.discard(run)
        for generation in run.generations:
            if run.model.engine is not None:
                run.model.engine.cancel(generation)
        run.end(error, failed_series)
        for generation in run.generations:
            self._notify("observe_generation", run.model.model_id, generation)

    def _notify(self, method: str, *args: object) -> None:
        for observer in list(self._observers):
            try:
                getattr(observer, method)(*args)
            except Exception:  # an observer must not end what it observes
                log.exception("%s failed, and no longer observes the engine", type(observer).__name__)
                self._observers.remove(observer)
