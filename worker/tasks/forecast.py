"""``kronos.forecast``: one job from the queue to its one outcome.

A worker claims the job when it begins, and keeps the claim until the outcome is stored. A job whose earlier
attempts ended with their processes is computed in isolation.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from celery import Task
from celery.exceptions import BackendError, Ignore
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.jobs import read_job
from kronos_client.contract.names import FORECAST_TASK, PROGRESS_STATE
from kronos_client.contract.results import ForecastProgress
from kronos_client.redis.job_store import Receipt
from kronos_model.processes.json_child import ChildEnded
from worker.app import app
from worker.broker.claims import Claim
from worker.broker.result_backend import coded
from worker.inference.engine_thread import EngineDied
from worker.inference.executor import DiedInEngine, compute
from worker.inference.forecast_process import ForecastProcess
from worker.inference.isolation.isolation import NotNow, Unavailable
from worker.process import current_process
from worker.tasks.attempt import JOB_TASK, REQUEUE_DELAY_S, Attempt, Requeued, job_of

log = logging.getLogger(__name__)

POSTPONE_DELAY_S: Final = 5.0
MAX_POSTPONED: Final = 12
LATE_GRACE_S: Final = 2.0
"""The isolated process reports a late job itself. The worker waits this long for that, then ends it."""
MAX_LOST_ALONE: Final = 2


@app.task(name=FORECAST_TASK, **JOB_TASK)
def forecast(self: "Task[Any, Any]", /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Compute one job. Returns its result as JSON, or raises JobError.

    Every error of the job becomes a JobError with a code. If the job itself is not at fault, it goes back to
    the queue.
    """
    return ForecastAttempt(self, current_process()).answer(args, kwargs)


class ForecastAttempt(Attempt):
    """One delivery of a forecast job; the ``JobContext`` of its computation."""

    _process: ForecastProcess

    def __init__(self, task: "Task[Any, Any]", process: ForecastProcess) -> None:
        super().__init__(task, process)
        self._claim: Claim | None = None
        self._late_at = math.inf  # by time.monotonic

    def answer(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The task's answer: a result, or one of the exceptions that Celery handles."""
        try:
            result = self._run(job_of(args, kwargs))
        except EngineDied as error:
            raise self._requeued(str(error), is_lost=isinstance(error, DiedInEngine)) from None
        except NotNow as error:
            raise self._requeued(str(error), error.delay_s) from None
        except (Ignore, Requeued, JobError):
            raise
        except (RedisError, BackendError, OperationalError) as error:
            raise self._requeued(f"{type(error).__name__}: {error}", REQUEUE_DELAY_S) from None
        except Exception as error:  # an error without a code would send its traceback to the caller
            log.exception("job %s failed because of a defect in this software", self._job_id)
            raise coded(error) from None
        self._request.finished = result  # for the result backend
        return result

    def is_cancelled(self) -> bool:
        """Whether to cancel the job.

        Raises Ignore if another worker has it, and NotNow if this worker shuts down and must hand it back.
        """
        if self._claim is not None and self._claim.is_taken_away:
            raise Ignore
        if time.monotonic() > self._process.hand_back_at:
            raise NotNow("the worker shuts down, and the job was not done within KRONOS_DRAIN_TIMEOUT_S")
        if time.monotonic() > self._late_at:
            late = "the job was not done within its deadline; allow more time"
            raise JobError(ErrorCode.DEADLINE, late, "deadline_s")
        try:
            return self._process.job_store.is_cancelled(self._job_id)
        except RedisError as error:
            log.warning("job %s: Redis failed, a cancellation is noticed late: %s", self._job_id, error)
            return False

    def report_progress(self, progress: ForecastProgress) -> None:
        state = progress.as_json()
        try:
            self._backend.store_result(self._job_id, state, PROGRESS_STATE, request=self._request)
        except RedisError as error:
            log.warning("job %s: its progress could not be stored: %s", self._job_id, error)

    def _run(self, payload: Any) -> dict[str, Any]:
        receipt, self._claim = self._begin()
        job = read_job(payload, self._process.limits)
        latest_s = receipt.waited_s(job.submitted_at) + self._time_limit_s
        if latest_s < (job.deadline_s or math.inf):
            job = job.model_copy(update={"deadline_s": latest_s})
        self._process.metrics.observe_job_wait(self._request.delivery_info, job.submitted_at, receipt)
        if receipt.is_suspect:
            if job.deadline_s is not None:
                left_s = job.deadline_s - receipt.waited_s(job.submitted_at)
                self._late_at = time.monotonic() + left_s + LATE_GRACE_S
            return self._run_suspect(payload, receipt)
        return compute(self._process, self._job_id, job, receipt, self._queue, self, self._priority)

    def _run_suspect(self, job: Mapping[str, Any], receipt: Receipt) -> dict[str, Any]:
        """Compute the job alone in a process. The job's record counts the processes that died with it."""
        self._process.capacity.admitted(self._job_id)  # it takes no slots of this process
        job_store = self._process.job_store
        try:
            return self._process.isolation.compute(self._job_id, job, receipt, self._queue, self)
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
