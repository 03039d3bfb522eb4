"""The forecast jobs that this worker holds: each from its delivery to its one outcome.

All of them on one thread, that of Celery's event loop. It begins, prepares and ends jobs in batches, and
waits for nothing but Redis's answers; the engines' thread computes.

A worker claims a job when it begins, and keeps the claim until the outcome is stored. A job whose earlier
attempts ended with their processes is computed in isolation.
"""

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

from celery import states
from celery.exceptions import Ignore
from celery.worker import state
from redis.exceptions import RedisError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.jobs import read_job
from kronos_client.contract.names import FORECAST_TASK, PROGRESS_STATE
from kronos_client.contract.results import ForecastProgress
from kronos_client.core.stored import encode_failure, encode_state
from kronos_client.redis.job_store import Beginning, Begun, Ended, Ending, Receipt
from kronos_model.processes.json_child import ChildEnded
from worker.broker import transport
from worker.broker.claims import Claim
from worker.broker.result_backend import coded
from worker.broker.store_health import store_health
from worker.inference.engine_thread import EngineDied
from worker.inference.executor import CHECK_INTERVAL_S, Computation, DiedInEngine
from worker.inference.forecast_process import ForecastProcess
from worker.inference.isolation.isolation import NotNow, Unavailable
from worker.process import Jobs
from worker.tasks.attempt import REQUEUE_DELAY_S, Attempt, Requeued, einfo_of, job_of

log = logging.getLogger(__name__)
task_log = logging.getLogger("celery.app.trace")
"""Celery's own, for the lines that it writes of other tasks."""

MAX_AT_ONCE: Final = 64
POSTPONE_DELAY_S: Final = 5.0
MAX_POSTPONED: Final = 12
LATE_GRACE_S: Final = 2.0
"""The isolated process reports a late job itself. The worker waits this long for that, then ends it."""
MAX_LOST_ALONE: Final = 2
ENDINGS: Final = (JobError, EngineDied, NotNow, RedisError, Ignore, Requeued)
"""The errors that end an attempt, with an outcome or without."""


class ForecastJobs(Jobs):
    """The jobs of a process. ``add`` and ``changed`` may be called from any thread."""

    def __init__(self, process: ForecastProcess) -> None:
        self.process = process
        self.backend = transport.backend()
        self._received: deque[ForecastAttempt] = deque()
        self._changed: deque[ForecastAttempt] = deque()
        self._begun: dict[str, ForecastAttempt] = {}  # by the delivery's tag
        self._running = threading.Lock()
        self._begin_at = self._check_at = 0.0  # by time.monotonic

    def __len__(self) -> int:
        return len(self._received) + len(self._begun)

    def add(self, attempt: "ForecastAttempt") -> None:
        """Take a job that was received."""
        self._received.append(attempt)
        transport.message_consumer().wake()

    def changed(self, attempt: "ForecastAttempt") -> None:
        """Note that a job may go on."""
        self._changed.append(attempt)
        transport.message_consumer().wake()

    def forget(self, attempt: "ForecastAttempt") -> None:
        """A job has ended here."""
        self._begun.pop(attempt.tag, None)

    def run(self) -> None:
        """Begin, go on with and end jobs, as far as that is possible now."""
        if not self._running.acquire(blocking=False):
            return  # another thread does it
        try:
            self._begin()
            for _ in range(min(len(self._changed), MAX_AT_ONCE)):
                self._changed.popleft().advance()
            if time.monotonic() >= self._check_at:
                self._check_at = time.monotonic() + CHECK_INTERVAL_S
                self._check()
        finally:
            self._running.release()
        if self._changed:
            transport.message_consumer().wake()

    def _begin(self) -> None:
        """Claim received jobs, and start them."""
        asked_at, process = time.monotonic(), self.process
        if not self._received or asked_at < self._begin_at:
            return
        batch = [self._received.popleft() for _ in range(min(len(self._received), MAX_AT_ONCE))]
        try:
            beginnings = [attempt.beginning() for attempt in batch]
            answers = process.job_store.begin_all(beginnings, process.claims.timeout_s, process.node)
        except RedisError as error:
            store_health.refused(error)
            if process.state == "draining":
                for attempt in batch:
                    attempt.leave(Requeued(f"{type(error).__name__}: {error}"))
            else:  # they stay here: another worker would get the same answer
                self._received.extendleft(reversed(batch))
                self._begin_at = asked_at + REQUEUE_DELAY_S
            return
        for attempt, answer in zip(batch, answers, strict=True):
            self._begun[attempt.tag] = attempt
            attempt.begun(answer, asked_at)

    def _check(self) -> None:
        """What is due about once a second: cancellations, hand-overs, progress."""
        attempts = list(self._begun.values())
        cancelled: set[str] = set()
        store = self.process.job_store
        try:
            cancelled = store.cancelled([attempt.job_id for attempt in attempts])
        except RedisError as error:
            log.warning("Redis failed, cancellations are noticed late: %s", error)
        progress = [(attempt, attempt.check(attempt.job_id in cancelled)) for attempt in attempts]
        reported = [Ending(one.job_id, encode_state(one.job_id, PROGRESS_STATE, done.as_json()), one.tag)
                    for one, done in progress if done is not None]  # fmt: skip
        try:
            for first in range(0, len(reported), MAX_AT_ONCE):
                store.store_states(reported[first : first + MAX_AT_ONCE])
        except RedisError as error:
            log.warning("the jobs' progress could not be stored: %s", error)


class ForecastAttempt(Attempt):
    """One delivery of a forecast job. Its methods are called on the thread of ``ForecastJobs.run``.

    Args:
        context: Celery's context of the request.
        request: Celery's request, if no thread of its pool waits for the job.
        waiter: Gets the result, or the exception that Celery handles, if one does.
    """

    _process: ForecastProcess

    def __init__(
        self,
        jobs: ForecastJobs,
        context: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        request: Any = None,
        waiter: "Future[dict[str, Any]] | None" = None,
    ) -> None:
        super().__init__(context, jobs.process, jobs.backend)
        self._jobs = jobs
        self._arguments = args, kwargs
        self._celery_request, self._waiter = request, waiter
        self._claim: Claim | None = None
        self._computation: Computation | None = None
        self._isolated: IsolatedRun | None = None
        self._began_at = time.monotonic()
        self._is_settled = False

    @property
    def job_id(self) -> str:
        return self._job_id

    @property
    def tag(self) -> str:
        return self._tag

    def beginning(self) -> Beginning:
        """What begins the job in Redis."""
        started = {"pid": os.getpid(), "hostname": self._process.node}
        return Beginning(self._job_id, encode_state(self._job_id, states.STARTED, started), self._tag)

    def begun(self, answer: Begun | JobError | RedisError, asked_at: float) -> None:
        """Start the job, unless this delivery may not."""
        with self._ended_by_errors():
            receipt, self._claim = self._claimed(answer, asked_at)
            self._began_at = time.monotonic()
            if self._celery_request is not None:
                self._celery_request.on_accepted(os.getpid(), self._began_at)
            self._start(receipt)

    def advance(self) -> None:
        """Go on as far as possible."""
        if self._is_settled:
            return
        with self._ended_by_errors():
            if self._isolated is not None:
                self._settle(self._isolated.outcome.result())
            elif self._computation is not None and self._computation.advance():
                self._settle(self._computation.result())

    def check(self, is_cancelled: bool) -> ForecastProgress | None:
        """Cancel the job or give it up if it must end; otherwise returns its new progress, if any."""
        if self._is_settled:
            return None
        if self._isolated is not None:
            self._isolated.check(self._reason_to_leave(), is_cancelled=is_cancelled)
            return self._isolated.new_progress()
        with self._ended_by_errors():
            if (reason := self._reason_to_leave()) is not None:
                raise reason
            if self._computation is not None and is_cancelled:
                self._computation.cancel()
            elif self._computation is not None:
                self.advance()  # a model that loads, or an engine that died
                return None if self._is_settled else self._computation.new_progress()
        return None

    def leave(self, error: Exception) -> None:
        """End this attempt without an outcome: by Ignore or Requeued."""
        self._is_settled = True
        self._jobs.forget(self)
        if self._waiter is not None:
            self._waiter.set_exception(error)
            return
        self._process.claims.drop(self._tag)
        if isinstance(error, Requeued) and store_health.problem is None:  # else one line a minute says that
            log.info("job %s goes back to the queue: %s", self._job_id, error)
        self._celery_request.on_success((True, einfo_of(error), 0.0))

    def _start(self, receipt: Receipt) -> None:
        payload = job_of(*self._arguments)
        job = read_job(payload, self._process.limits)
        latest_s = receipt.waited_s(job.submitted_at) + self._time_limit_s
        if latest_s < (job.deadline_s or math.inf):
            job = job.model_copy(update={"deadline_s": latest_s})
        self._process.metrics.observe_job_wait(self._request.delivery_info, job.submitted_at, receipt)

        def on_change() -> None:
            self._jobs.changed(self)

        if receipt.is_suspect:
            late_at = math.inf
            if job.deadline_s is not None:
                left_s = job.deadline_s - receipt.waited_s(job.submitted_at)
                late_at = time.monotonic() + left_s + LATE_GRACE_S
            given = (self._process, self._job_id, self._tag, payload, receipt, self._queue)
            self._isolated = IsolatedRun(*given, late_at, on_change)
            return
        given_job = (self._job_id, job, receipt, self._queue, self._priority)
        self._computation = Computation(self._process, *given_job, on_change)
        self.advance()

    def _reason_to_leave(self) -> Exception | None:
        """Why the job must end here without an outcome, if it must."""
        if self._claim is not None and self._claim.is_taken_away:
            return Ignore()
        if time.monotonic() > self._process.hand_back_at:
            return NotNow("the worker shuts down, and the job was not done within KRONOS_DRAIN_TIMEOUT_S")
        return None

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        try:
            yield
        except ENDINGS as error:
            self._fail(error)
        except Exception as error:  # an error without a code would send its traceback to the caller
            log.exception("job %s failed because of a defect in this software", self._job_id)
            self._settle(coded(error))

    def _fail(self, error: Exception) -> None:
        """End by an error: an outcome, or a way back to the queue if the job is not at fault."""
        match error:
            case EngineDied():
                self._leave_engine(self._requeued(str(error), is_lost=isinstance(error, DiedInEngine)))
            case NotNow():
                self._leave_engine(self._requeued(str(error), error.delay_s))
            case RedisError():
                self._leave_engine(self._requeued(f"{type(error).__name__}: {error}", REQUEUE_DELAY_S))
            case JobError():
                self._settle(error)
            case _:
                self._leave_engine(error)

    def _leave_engine(self, error: Exception) -> None:
        self._close()
        self.leave(error)

    def _settle(self, outcome: "dict[str, Any] | JobError") -> None:
        """End by a result or an error."""
        self._is_settled = True
        self._close()
        if self._waiter is not None:
            self._jobs.forget(self)
            if isinstance(outcome, JobError):
                self._waiter.set_exception(outcome)
            else:
                self._waiter.set_result(outcome)
            return
        if isinstance(outcome, JobError):
            encoded = encode_failure(self._job_id, outcome)
        else:
            encoded = encode_state(self._job_id, states.SUCCESS, outcome, self._request)
        self._backend.outcomes.put(
            Ending(self._job_id, encoded, self._tag),
            lambda answer: self._ended(outcome, answer),
            task=FORECAST_TASK,
            outcome=outcome,
        )

    def _ended(self, outcome: "dict[str, Any] | JobError", answer: Ended | RedisError) -> None:
        """The outcome is stored, or will not be: then the message is delivered again."""
        self._jobs.forget(self)
        self._process.claims.drop(self._tag)
        request, runtime_s = self._celery_request, time.monotonic() - self._began_at
        if isinstance(answer, RedisError):
            state.task_ready(request)
        elif isinstance(outcome, JobError):
            task_log.info("Task %s[%s] raised expected: %r", request.name, self._job_id, outcome)
            request.on_success((True, einfo_of(outcome), runtime_s))
        else:
            shown = f"{len(outcome['series'])} series"
            task_log.info("Task %s[%s] succeeded in %ss: %s", request.name, self._job_id, runtime_s, shown)
            request.on_success((False, shown, runtime_s))

    def _close(self) -> None:
        if self._computation is not None:
            self._computation.close()
            self._computation = None  # it refers to this: its tensors would wait for Python's collector


class IsolatedRun:
    """A suspect that is computed alone in a process. A thread waits for it; this is its ``JobContext``.

    Attributes:
        outcome: The result, or the error.
    """

    def __init__(
        self,
        process: ForecastProcess,
        job_id: str,
        tag: str,
        job: Mapping[str, Any],
        receipt: Receipt,
        queue: str,
        late_at: float,
        on_end: Callable[[], object],
    ) -> None:
        self.outcome: Future[dict[str, Any]] = Future()
        self.outcome.add_done_callback(lambda _: on_end())
        self._is_wanted = True
        self._interruption: Exception | None = None
        self._process, self._job_id, self._tag = process, job_id, tag
        self._late_at = late_at
        self._progress: ForecastProgress | None = None
        process.capacity.admitted(job_id)  # it takes no slots of this process
        given = (job, receipt, queue)
        threading.Thread(target=self._run, args=given, name="kronos-isolated", daemon=True).start()

    def check(self, reason_to_leave: Exception | None, *, is_cancelled: bool) -> None:
        """Have the thread end its wait, if it must."""
        self._interruption, self._is_wanted = reason_to_leave, not is_cancelled

    def new_progress(self) -> ForecastProgress | None:
        """What was reported since the last call."""
        progress, self._progress = self._progress, None
        return progress

    def is_cancelled(self) -> bool:
        if self._interruption is not None:
            raise self._interruption
        if time.monotonic() > self._late_at:
            late = "the job was not done within its deadline; allow more time"
            raise JobError(ErrorCode.DEADLINE, late, "deadline_s")
        return not self._is_wanted

    def report_progress(self, progress: ForecastProgress) -> None:
        self._progress = progress

    def _run(self, job: Mapping[str, Any], receipt: Receipt, queue: str) -> None:
        try:
            self.outcome.set_result(self._compute(job, receipt, queue))
        except ENDINGS as error:
            self.outcome.set_exception(error)
        except Exception as error:
            log.exception("job %s failed because of a defect in this software", self._job_id)
            self.outcome.set_exception(coded(error))

    def _compute(self, job: Mapping[str, Any], receipt: Receipt, queue: str) -> dict[str, Any]:
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
                raise worker_lost(ended.exit_status) from None
            raise NotNow(str(ended)) from None
        except Unavailable as unavailable:
            log.warning("job %s: it cannot run in isolation now, trying later: %s", self._job_id, unavailable)
            num_postponed = job_store.count(self._job_id, self._tag, "put_off")
            if num_postponed is not None and num_postponed >= MAX_POSTPONED:
                raise unavailable.error from None
            raise NotNow(str(unavailable), POSTPONE_DELAY_S) from None


def worker_lost(exit_status: int) -> JobError:
    """The error of a job whose process died each time, although it computed only this job."""
    how = f"signal {-exit_status}" if exit_status < 0 else f"status {exit_status}"
    text = (
        f"each process that computed the job died, the last one by {how}: report it with the job's id, or "
        "ask for fewer paths if memory may be short"
    )
    return JobError(ErrorCode.WORKER_LOST, text, None, {"exit_status": exit_status})
