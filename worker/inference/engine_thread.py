"""The only thread that uses engines: it submits, steps and cancels. Nothing in it waits for Redis."""

import logging
import math
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, Protocol

from kronos_model.engine.generation import Generation, SeriesRequest
from kronos_model.engine.reports import EngineLoad, StepReport
from kronos_model.errors import Cancelled, KronosError
from worker.inference.job_run import HostedEngine, JobRun
from worker.inference.watchdog import Watchdog

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0


class EngineDied(Exception):
    """The engines' thread has ended. Another worker must compute the job."""

    def __init__(self) -> None:
        super().__init__("the engine has stopped")


class EngineObserver(Protocol):
    """Observes engines. Its methods run on the engines' thread and must be short."""

    def observe_step(self, model_id: str, report: StepReport, load: EngineLoad) -> None:
        """Called after each step of this model's engine."""

    def observe_generation(self, model_id: str, generation: Generation) -> None:
        """Called once for each series that ended, with its paths or an error."""


class EngineThread:
    """Runs jobs on any number of engines. All methods may be called from any thread.

    Each engine that has work gets one step in turn, so that none waits for another's queue to empty. While no
    engine has work, they prepare for it, piece by piece.

    Args:
        watchdog: Detects a step that hangs; by default there is no limit.
        on_admission: Called on the engines' thread with a job's id when an engine's load counts it.
        on_death: Called on the engines' thread when it dies, before its jobs end.
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
        self._on_admission = on_admission
        self._on_death = on_death
        self._on_start = on_start
        self._hosted: list[HostedEngine] = []  # replaced, never changed, so that any thread may read it
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
        return {hosted.model_id: hosted.load for hosted in self._hosted}

    @property
    def num_jobs(self) -> int:
        return sum(len(hosted.runs) for hosted in self._hosted)

    @property
    def job_ids(self) -> list[str]:
        return sorted(run.job_id for run in self.runs)

    @property
    def runs(self) -> list[JobRun]:
        """The jobs inside engines, the most advanced first."""
        runs = [run for hosted in self._hosted for run in hosted.runs.copy()]
        return sorted(runs, key=lambda run: (-run.num_bars_done / run.num_bars_total, run.job_id))

    @property
    def load(self) -> EngineLoad:
        loads = [(load.running, load.waiting, load.slots) for load in self.loads.values()]
        return EngineLoad(*map(sum, zip(*loads, strict=True))) if loads else EngineLoad(0, 0, 0)

    def add(self, hosted: HostedEngine) -> HostedEngine:
        """Add an engine between two turns. From now on only the engines' thread uses it."""

        def add() -> None:
            self._hosted = [*self._hosted, hosted]
            self._is_prepared.clear()

        self._run_and_wait(add)
        return hosted

    def remove(self, hosted: HostedEngine) -> None:
        """Remove an engine between two turns. Jobs that it still runs end with EngineDied."""

        def remove() -> None:
            self._hosted = [one for one in self._hosted if one is not hosted]
            for run in list(hosted.runs):
                self._end(run, EngineDied())
            hosted.engine = None

        self._run_and_wait(remove)

    def wait_until_prepared(self) -> None:
        """Wait until the engines are prepared as far as they can be, or a job needs them."""
        self._await(self._is_prepared)

    def submit(
        self,
        job_id: str,
        requests: Sequence[SeriesRequest],
        hosted: HostedEngine,
        on_end: Callable[[], object] = lambda: None,
    ) -> JobRun:
        """Send a job to an engine. Returns at once; ``on_end`` is called as of ``JobRun``."""
        run = JobRun(job_id, requests, hosted, on_end)
        self._commands.put(lambda: self._admit(run))
        return run

    def wait(self, run: JobRun, timeout_s: float) -> bool:
        """Whether the job ended within the time. If the engines' thread is dead, it ends with EngineDied."""
        if not run.wait(timeout_s if self.is_alive else 0) and not self.is_alive:
            run.end(EngineDied())
        return run.is_done

    def cancel(self, run: JobRun) -> None:
        """End a job with Cancelled at the next step."""
        self._commands.put(lambda: self._end(run, Cancelled("the job was cancelled, as asked")))

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
            for hosted in self._hosted:
                for run in list(hosted.runs):
                    run.end(EngineDied())

    def _loop(self) -> None:
        stopping = False
        while True:
            busy = [hosted for hosted in self._hosted if hosted.has_work]
            if stopping and not busy:
                return
            if not busy and self._commands.empty() and self._prepare():
                continue
            stopping = self._take_commands(block=not busy) or stopping
            for hosted in self._hosted:
                if hosted.has_work:
                    with self._watchdog.step(is_first=not hosted.has_stepped):
                        self._step(hosted)

    def _prepare(self) -> bool:
        """Let an engine use the idle time; False if none has anything to prepare."""
        for hosted in self._hosted:
            with self._watchdog.step(is_first=True):
                if hosted.engine is not None and hosted.engine.prepare():
                    return True
        self._is_prepared.set()
        return False

    def _take_commands(self, *, block: bool) -> bool:
        """Run the commands of other threads; True if one asks to stop."""
        while True:
            try:
                command = self._commands.get(block=block)
            except queue.Empty:
                return False
            if command is None:
                return True
            with self._watchdog.step():
                command()
            block = False

    def _run_and_wait(self, command: Callable[[], None]) -> None:
        """Wait until the engines' thread has run the command, or is dead."""
        done = threading.Event()
        self._commands.put(command)
        self._commands.put(done.set)
        self._await(done)

    def _await(self, event: threading.Event) -> None:
        while not event.wait(CHECK_INTERVAL_S) and self.is_alive:
            pass

    def _admit(self, run: JobRun) -> None:
        hosted = run.hosted
        if hosted.engine is None:
            run.end(EngineDied())
            return
        self._is_prepared.set()
        hosted.runs.add(run)
        for index, request in enumerate(run.requests):
            try:
                generation = hosted.engine.submit(request)
            except KronosError as error:
                self._end(run, error, index)
                return
            run.generations.append(generation)
            hosted.live.add(generation)
        self._on_admission(run.job_id)

    def _step(self, hosted: HostedEngine) -> None:
        """Make a step, then end the jobs that it completed, and those that have a failed series."""
        assert hosted.engine is not None
        ended = hosted.engine.step()
        hosted.has_stepped = True
        report, load = hosted.engine.last_step, hosted.engine.load
        self._notify(lambda observer: observer.observe_step(hosted.model_id, report, load))
        over = set(ended)
        for generation in ended:
            self._note_end(hosted, generation)
        for run in [run for run in hosted.runs if not over.isdisjoint(run.generations)]:
            failed = [index for index, one in enumerate(run.generations) if one.error is not None]
            if failed:
                self._end(run, run.generations[failed[0]].error, failed[0])
            elif all(generation.done for generation in run.generations):
                self._end(run)

    def _end(self, run: JobRun, error: Exception | None = None, failed_series: int | None = None) -> None:
        """End a job, and free the slots of its series."""
        hosted = run.hosted
        hosted.runs.discard(run)
        for generation in run.generations:
            if hosted.engine is not None:
                hosted.engine.cancel(generation)
            self._note_end(hosted, generation)
        run.end(error, failed_series)

    def _note_end(self, hosted: HostedEngine, generation: Generation) -> None:
        """Notify once only: an engine may also return a cancelled generation."""
        if generation in hosted.live:
            hosted.live.discard(generation)
            self._notify(lambda observer: observer.observe_generation(hosted.model_id, generation))

    def _notify(self, notify: Callable[[EngineObserver], None]) -> None:
        for observer in list(self._observers):
            try:
                notify(observer)
            except Exception:  # an observer must not end what it observes
                log.exception("%s failed, and no longer observes the engine", type(observer).__name__)
                self._observers.remove(observer)
