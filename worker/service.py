"""The owner of the engine: one thread submits, steps and cancels; tasks wait for it."""

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kronos_model.engine.engine import Engine
from kronos_model.engine.sequence import Generation, SeriesRequest
from kronos_model.errors import Cancelled, KronosError

log = logging.getLogger(__name__)


class EngineDied(Exception):
    """The engine's thread is gone; the job is to be delivered to another worker."""


class JobRun:
    """A job inside the engine: its series' generations, and a way to wait for them."""

    def __init__(self, job_id: str, requests: Sequence[SeriesRequest]) -> None:
        self.job_id = job_id
        self.requests = tuple(requests)
        self.generations: list[Generation] = []
        self.error: Exception | None = None
        self.failed_series: int | None = None
        self.num_bars_total = sum(r.horizon * r.sampling.sample_count for r in self.requests)
        self._done = threading.Event()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def num_bars_done(self) -> int:
        """Bars over all paths of all series."""
        return sum(generation.num_bars_done for generation in self.generations)

    def wait(self, timeout_s: float) -> bool:
        """Whether the job ended within the time; ``ForecastService.wait`` notices a dead engine too."""
        return self._done.wait(timeout_s)

    def result(self) -> list[Generation]:
        """The generations of all series, in order; raises what ended the job otherwise."""
        if self.error is not None:
            raise self.error
        return self.generations

    def end(self, error: Exception | None = None, failed_series: int | None = None) -> None:
        """Wake whoever waits; only the first end counts."""
        if not self.is_done:
            self.error, self.failed_series = error, failed_series
            self._done.set()


@dataclass
class Counters:
    """Jobs that ended in this process."""

    done: int = 0
    failed: int = 0


class ForecastService:
    """Runs jobs on one engine. All methods may be called from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._runs: set[JobRun] = set()
        self._thread = threading.Thread(target=self._own, name="kronos-engine", daemon=True)
        self._counters_lock = threading.Lock()
        self.counters = Counters()

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def slots(self) -> tuple[int, int]:
        """Slots in use and in all."""
        scheduler = self._engine.scheduler
        return scheduler.slots_used, scheduler.max_slots

    def submit(self, job_id: str, requests: Sequence[SeriesRequest]) -> JobRun:
        """Hand a job to the engine; returns at once."""
        run = JobRun(job_id, requests)
        self._commands.put(lambda: self._admit(run))
        return run

    def wait(self, run: JobRun, timeout_s: float) -> bool:
        """Whether the job ended within the time; ends it with EngineDied where nobody would any more."""
        if not run.wait(timeout_s) and not self.is_alive:
            run.end(EngineDied("the engine has stopped"))
        return run.is_done

    def cancel(self, run: JobRun) -> None:
        """End a job with Cancelled at the next step."""
        self._commands.put(lambda: self._end(run, Cancelled("the job was cancelled, as asked")))

    def count(self, *, succeeded: bool) -> None:
        """Note a job that ended, for the status."""
        with self._counters_lock:
            if succeeded:
                self.counters.done += 1
            else:
                self.counters.failed += 1

    def stop(self, timeout_s: float = 10.0) -> None:
        """Let the engine finish what it holds, then end its thread."""
        self._commands.put(None)
        self._thread.join(timeout_s)

    def _own(self) -> None:
        try:
            self._loop()
        except BaseException:  # whatever ends this thread must not leave its jobs waiting for ever
            log.critical("the engine's thread died; its jobs go back to the queue", exc_info=True)
            # A worker without an engine would take jobs and never answer.
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            for run in list(self._runs):
                run.end(EngineDied("the engine has stopped"))

    def _loop(self) -> None:
        stopping = False
        while not stopping or self._engine.has_work:
            stopping = self._take_commands(block=not self._engine.has_work and not stopping) or stopping
            if self._engine.has_work:
                self._collect(self._engine.step())

    def _take_commands(self, *, block: bool) -> bool:
        """Carry out what was asked for; True once told to stop."""
        while True:
            try:
                command = self._commands.get(block=block)
            except queue.Empty:
                return False
            if command is None:
                return True
            command()
            block = False

    def _admit(self, run: JobRun) -> None:
        self._runs.add(run)
        for index, request in enumerate(run.requests):
            try:
                run.generations.append(self._engine.submit(request))
            except KronosError as error:
                self._end(run, error, index)
                return

    def _collect(self, ended: Sequence[Generation]) -> None:
        """After a step: end the jobs whose last series ended with it, and those of which one failed."""
        over = set(ended)
        for run in [run for run in self._runs if not over.isdisjoint(run.generations)]:
            failed = [index for index, one in enumerate(run.generations) if one.error is not None]
            if failed:
                self._end(run, run.generations[failed[0]].error, failed[0])
            elif all(generation.done for generation in run.generations):
                self._end(run)

    def _end(self, run: JobRun, error: KronosError | None = None, failed_series: int | None = None) -> None:
        """End a job and free what its series still hold."""
        self._runs.discard(run)
        for generation in run.generations:
            self._engine.cancel(generation)
        run.end(error, failed_series)


def deadline_from(remaining_s: float | None) -> float | None:
    """Seconds left as a moment on ``time.monotonic``'s clock."""
    return None if remaining_s is None else time.monotonic() + remaining_s
