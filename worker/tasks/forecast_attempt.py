"""One delivery of a forecast job, from its claim to its outcome or back to the queue.

A worker claims the job when it begins, and keeps the claim until the outcome is stored. A job whose earlier
attempts ended with their processes is computed in isolation.
"""

import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from celery import states
from celery.exceptions import Ignore
from celery.worker import state
from redis.exceptions import RedisError

from kronos_client.contract.errors import JobError
from kronos_client.contract.jobs import read_job
from kronos_client.contract.names import FORECAST_TASK
from kronos_client.contract.results import ForecastProgress, ForecastResult
from kronos_client.core.stored import encode_failure, encode_state
from kronos_client.redis.job_store import Beginning, Begun, Ended, Ending, Receipt
from worker.broker.claims import Claim
from worker.broker.outcomes import store_health
from worker.broker.result_backend import coded
from worker.inference.engine_thread import EngineDied
from worker.inference.executor import Computation, DiedInEngine
from worker.inference.forecast_process import ForecastProcess
from worker.inference.isolation.isolated_run import IsolatedRun
from worker.inference.isolation.isolation import NotNow
from worker.tasks.attempt import REQUEUE_DELAY_S, Attempt, Requeued, einfo_of, job_of

if TYPE_CHECKING:
    from worker.tasks.forecast_jobs import ForecastJobs

log = logging.getLogger(__name__)
task_log = logging.getLogger("celery.app.trace")
"""Celery's own, for the lines that it writes of other tasks."""

Outcome = ForecastResult | dict[str, Any] | JobError
"""The isolated process gives its result as JSON."""
ENDINGS: Final = (JobError, EngineDied, NotNow, RedisError, Ignore, Requeued)
"""The errors that end an attempt, with an outcome or without."""


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
        jobs: "ForecastJobs",
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

    def beginning(self) -> Beginning:
        """What begins the job in Redis."""
        started = {"pid": os.getpid(), "hostname": self._process.node}
        return Beginning(self.job_id, encode_state(self.job_id, states.STARTED, started), self.tag)

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
        self._process.claims.drop(self.tag)
        if isinstance(error, Requeued) and store_health.problem is None:  # else one line a minute says that
            log.info("job %s goes back to the queue: %s", self.job_id, error)
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
            left_s = None if job.deadline_s is None else job.deadline_s - receipt.waited_s(job.submitted_at)
            given = (self._process, self.job_id, self.tag, payload, receipt, self._queue)
            self._isolated = IsolatedRun(*given, left_s, on_change)
            return
        given_job = (self.job_id, job, receipt, self._queue, self._priority)
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
            log.exception("job %s failed because of a defect in this software", self.job_id)
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

    def _settle(self, outcome: Outcome) -> None:
        """End by a result or an error."""
        self._is_settled = True
        self._close()
        if self._waiter is not None:
            self._jobs.forget(self)
            if isinstance(outcome, JobError):
                self._waiter.set_exception(outcome)
            else:
                as_json = outcome if isinstance(outcome, dict) else outcome.model_dump(mode="json")
                self._waiter.set_result(as_json)
            return
        if isinstance(outcome, JobError):
            encoded = encode_failure(self.job_id, outcome)
        else:
            encoded = encode_state(self.job_id, states.SUCCESS, outcome, self._request)
        self._backend.outcomes.put(
            Ending(self.job_id, encoded, self.tag),
            lambda answer: self._ended(outcome, answer),
            task=FORECAST_TASK,
            outcome=outcome,
        )

    def _ended(self, outcome: Outcome, answer: Ended | RedisError) -> None:
        """The outcome is stored, or it will not be: then another worker has the job, or will get it."""
        self._jobs.forget(self)
        self._process.claims.drop(self.tag)
        request, runtime_s = self._celery_request, time.monotonic() - self._began_at
        if isinstance(answer, RedisError) or answer == "held":
            state.task_ready(request)
        elif isinstance(outcome, JobError):
            task_log.info("Task %s[%s] raised expected: %r", request.name, self.job_id, outcome)
            request.on_success((True, einfo_of(outcome), runtime_s))
        else:
            shown = "a forecast"
            task_log.info("Task %s[%s] succeeded in %ss: %s", request.name, self.job_id, runtime_s, shown)
            request.on_success((False, shown, runtime_s))

    def _close(self) -> None:
        if self._computation is not None:
            self._computation.close()
            self._computation = None  # it refers to this: its tensors would wait for Python's collector
