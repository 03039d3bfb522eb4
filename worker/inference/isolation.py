"""Computes suspects one at a time in a child process, which is started when a suspect needs it.

A job is a suspect after two of its attempts ended with their process. The cause may be this job, another job
in the process, or a machine that kills workers. If the child dies while its worker lives, its only job is the
cause.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from celery.exceptions import Ignore

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.results import ForecastProgress
from kronos_client.redis.job_store import Receipt
from kronos_model.processes.children import LocalStackError, module_command
from kronos_model.processes.json_child import ChildEnded, Event, JsonChild
from worker.deadline import Deadline, late
from worker.process import RetryLater

if TYPE_CHECKING:
    from worker.inference.forecast_process import ForecastProcess

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
SETTLE_S: Final = 0.5
"""A signal to all processes of a worker may end the child first. It counts only if the worker survives."""
MIN_BUSY_DELAY_S: Final = 1.0
MAX_BUSY_DELAY_S: Final = 30.0
PLACES_SHARE: Final = 4
"""One in so many of a worker's jobs may be a suspect, so that threads stay free for the others."""
KILLED: Final = -9
EXIT_IDLE: Final = 90
"""Exit status of a child that was idle for a while."""
POSTPONE_DELAY_S: Final = 5.0
MAX_POSTPONED: Final = 12
LATE_GRACE_S: Final = 2.0
"""The isolated process reports a late job itself. The worker waits this long for that, then ends it."""
MAX_LOST_ALONE: Final = 2
VMSTAT: Final = Path("/proc/vmstat")


class ChildUnavailable(Exception):
    """The child cannot load the models, or was killed from outside. ``error`` says why."""

    def __init__(self, error: JobError) -> None:
        super().__init__(str(error))
        self.error = error


class IsolatedRun:
    """A suspect, used as a ``Computation``: a thread waits for the isolated process.

    Args:
        on_change: Called, on any thread, when ``advance`` may go on.
    """

    def __init__(
        self,
        process: "ForecastProcess",
        job_id: str,
        tag: str,
        job: object,
        receipt: Receipt,
        queue: str,
        deadline: Deadline,
        on_change: Callable[[], object],
    ) -> None:
        self._is_cancelled = False
        self._process, self._job_id, self._tag = process, job_id, tag
        self._deadline = deadline
        self._progress: ForecastProgress | None = None
        self._outcome: Future[dict[str, object]] = Future()
        self._outcome.add_done_callback(lambda _: on_change())
        process.capacity.admitted(job_id)  # it takes no slots of this process
        given = (job, receipt, queue)
        threading.Thread(target=self._run, args=given, name="kronos-isolated", daemon=True).start()

    def advance(self) -> bool:
        """Whether the job has ended, so that it has its ``result``. Raises JobError if it is late."""
        if not self._outcome.done() and self._deadline.has_passed(grace_s=LATE_GRACE_S):
            raise late("the job was not done within its deadline")
        return self._outcome.done()

    def result(self) -> dict[str, object]:
        """The result as JSON, or the error."""
        return self._outcome.result()

    def new_progress(self) -> ForecastProgress | None:
        """What was reported since the last call."""
        progress, self._progress = self._progress, None
        return progress

    def report_progress(self, progress: ForecastProgress) -> None:
        self._progress = progress

    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> None:
        """Have the thread end its wait, and the child."""
        self._is_cancelled = True

    close = cancel

    def _run(self, job: object, receipt: Receipt, queue: str) -> None:
        try:
            self._outcome.set_result(self._compute(job, receipt, queue))
        except Exception as error:  # noqa: BLE001  ``ForecastAttempt.fail`` handles all
            self._outcome.set_exception(error)

    def _compute(self, job: object, receipt: Receipt, queue: str) -> dict[str, object]:
        """The result. The job's record counts the processes that died with it."""
        job_store = self._process.job_store
        try:
            return self._process.isolation.compute(self._job_id, job, receipt, queue, self)
        except ChildEnded as ended:
            log.warning("job %s: %s while it computed only this job", self._job_id, ended)
            num_lost = job_store.count(self._job_id, self._tag, "lost_alone")
            if num_lost is None:
                raise Ignore from None
            if num_lost >= MAX_LOST_ALONE:
                raise _worker_lost(ended.exit_status) from None
            raise RetryLater(str(ended)) from None
        except ChildUnavailable as unavailable:
            log.warning("job %s: it cannot run in isolation now, trying later: %s", self._job_id, unavailable)
            num_postponed = job_store.count(self._job_id, self._tag, "put_off")
            if num_postponed is not None and num_postponed >= MAX_POSTPONED:
                raise unavailable.error from None
            raise RetryLater(str(unavailable), POSTPONE_DELAY_S) from None


def start_child() -> JsonChild:
    """Start ``isolation_child.py``; raises LocalStackError if that fails."""
    command = module_command("worker.inference.isolation_child")
    return JsonChild("isolation", command, error_sink=lambda name, line: log.info("%s: %s", name, line))


class Isolation:
    """Computes suspects. All methods may be called from any thread.

    Args:
        hello: Returns the first message to the child. If it has changed, a new child replaces the one before.
        is_draining: Returns whether the worker shuts down; then no more suspects begin.
    """

    def __init__(
        self,
        max_jobs: int,
        hello: Callable[[], Mapping[str, object]],
        is_draining: Callable[[], bool],
        start: Callable[[], JsonChild] = start_child,
    ) -> None:
        self._num_places = max(1, max_jobs // PLACES_SHARE)
        self._places = threading.BoundedSemaphore(self._num_places)
        self._turn = threading.Lock()
        self._last_s = 0.0
        self._hello, self._is_draining, self._start = hello, is_draining, start
        self._told: Mapping[str, object] = {}
        self._is_stopped = False
        self._child: JsonChild | None = None

    def compute(
        self, job_id: str, job: object, receipt: Receipt, queue: str, run: IsolatedRun
    ) -> dict[str, object]:
        """Compute a job, as it came, in the child. Returns the worker's own result, as JSON.

        Raises:
            JobError: The job ends with this error.
            ChildEnded: The child died while it computed only this job, which may be the cause.
            RetryLater: Nothing was computed, for example because other suspects wait.
            ChildUnavailable: Nothing was computed, or the cause is not proved.
        """
        began = time.monotonic()
        with self._own_turn(run):
            child = self._ready_child(run)
            known = asdict(replace(receipt, now=receipt.now + time.monotonic() - began))
            num_before = num_oom_kills()
            child.send({"job_id": job_id, "job": job, "receipt": known, "queue": queue})
            try:
                while (event := self._next_event(child, run))["event"] == "progress":
                    run.report_progress(ForecastProgress.model_validate(event))
            except ChildEnded as ended:
                if ended.exit_status == EXIT_IDLE:  # it ended just as the job came
                    raise RetryLater("the isolated process ended before the job began") from None
                if ended.exit_status == KILLED and num_before is not None and num_oom_kills() == num_before:
                    raise ChildUnavailable(_killed_from_outside()) from None
                raise
        if event["event"] == "error":
            raise JobError(*event["error"])
        return dict(event["result"])

    def stop(self) -> None:
        """End the child. The attempt that it computes does not count against its job."""
        self._is_stopped = True
        if (child := self._child) is not None:
            child.end()

    @contextmanager
    def _own_turn(self, run: IsolatedRun) -> Iterator[None]:
        """Wait for the other suspects. An error inside ends the child, which would else continue the job."""
        if not self._places.acquire(blocking=False):
            delay_s = min(MAX_BUSY_DELAY_S, max(MIN_BUSY_DELAY_S, self._num_places * self._last_s))
            raise RetryLater("other jobs whose process died twice are computed first", delay_s)
        try:
            while not self._turn.acquire(timeout=CHECK_INTERVAL_S):
                self._raise_if_over(run)
            began = time.monotonic()
            try:
                self._raise_if_over(run)
                yield
            except BaseException:
                self._end_child()
                raise
            finally:
                self._last_s = time.monotonic() - began
                self._turn.release()
        finally:
            self._places.release()

    def _raise_if_over(self, run: IsolatedRun) -> None:
        if self._is_stopped or self._is_draining():
            raise RetryLater("the worker shuts down")
        _raise_if_cancelled(run)

    def _ready_child(self, run: IsolatedRun) -> JsonChild:
        """The running child, or a new one after it has loaded."""
        hello = self._hello()
        if self._child is not None and self._child.exit_status is None and hello == self._told:
            return self._child
        self._end_child()
        log.info("isolation: starting a separate process for a job whose process died twice")
        try:
            self._child = child = self._start()
        except LocalStackError as error:
            reason = f"no isolated process could be started for the job: {error}"
            raise ChildUnavailable(JobError(ErrorCode.INTERNAL, reason)) from None
        self._told = hello
        child.send(hello)
        try:
            event = self._next_event(child, run)
        except ChildEnded as ended:
            raise ChildUnavailable(_ended_loading(ended.exit_status)) from None
        if event["event"] != "ready":
            raise ChildUnavailable(JobError(*event["error"]))
        return child

    def _next_event(self, child: JsonChild, run: IsolatedRun) -> Event:
        try:
            while (event := child.next_event(CHECK_INTERVAL_S)) is None:
                _raise_if_cancelled(run)
        except ChildEnded:
            time.sleep(SETTLE_S)
            if self._is_stopped:
                raise RetryLater("the worker shuts down") from None
            raise
        return event

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


def _raise_if_cancelled(run: IsolatedRun) -> None:
    if run.is_cancelled():
        raise JobError(ErrorCode.CANCELLED, "the job was cancelled, as asked")


def num_oom_kills(vmstat: Path = VMSTAT) -> int | None:
    """Processes that this machine's kernel has killed for lack of memory, in containers or outside.

    A SIGKILL alone does not show its cause. None if the system does not count them; Linux does since 4.13.
    """
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def _killed_from_outside() -> JobError:
    """The error for a SIGKILL that neither the job nor a lack of memory can cause."""
    text = (
        "each isolated process that computed the job was killed from outside (SIGKILL): find what killed it, "
        "then submit the job again under a new id"
    )
    return JobError(ErrorCode.WORKER_LOST, text, None, {"exit_status": KILLED})


def _ended_loading(exit_status: int) -> JobError:
    """The error for a child that ended while it loaded its models."""
    ended, loading = "the isolated process for this job", "while it loaded its models"
    if exit_status == KILLED:
        remedy = "most likely for lack of memory: give the worker more memory"
        return JobError(ErrorCode.OUT_OF_MEMORY, f"{ended} was killed {loading}, {remedy}")
    text = f"{ended} ended with status {exit_status} {loading}; see the worker's log"
    return JobError(ErrorCode.INTERNAL, text)


def _worker_lost(exit_status: int) -> JobError:
    """The error of a job whose process died each time, although it computed only this job."""
    how = f"signal {-exit_status}" if exit_status < 0 else f"status {exit_status}"
    text = (
        f"each process that computed the job died, the last one by {how}: report it with the job's id, or "
        "ask for fewer paths if memory may be short"
    )
    return JobError(ErrorCode.WORKER_LOST, text, None, {"exit_status": exit_status})
