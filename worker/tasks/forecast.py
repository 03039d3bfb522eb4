"""``kronos.forecast``: one job from the queue to its one outcome.

Each delivery runs under a claim, which is taken as the job is begun and kept until its outcome is stored. A
job whose earlier attempts ended with their processes is computed in isolation.
"""

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from celery import Task, signals
from celery.exceptions import BackendError, Ignore
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.jobs import read_job
from kronos_client.contract.names import FORECAST_TASK, PROGRESS_STATE
from kronos_client.redis.connection import refuses_writes
from kronos_client.redis.job_store import Receipt
from kronos_client.redis.result_backend import tag_of
from kronos_model.processes.json_child import ChildEnded
from worker.app import app
from worker.broker.claims import Claim
from worker.inference.engine_thread import EngineDied
from worker.inference.executor import DiedInEngine, compute
from worker.inference.isolation.isolation import NotNow, Unavailable
from worker.inference.process import WorkerProcess
from worker.lifecycle import current_process
from worker.tasks.delivery import HELD_MARGIN_S, REQUEUE_DELAY_S, ClaimedRequest, HandedBack
from worker.tasks.payload import job_of

log = logging.getLogger(__name__)

PUT_OFF_DELAY_S: Final = 5.0
MAX_PUT_OFF: Final = 12
LATE_GRACE_S: Final = 2.0
"""The isolated process reports by itself that a job is late; the worker ends it after this time."""
MAX_LOST_ALONE: Final = 2
RESULT_REPR_CHARS: Final = 64
"""Of a result in events and Flower: a forecast's numbers say nothing there, and writing them takes long."""


@app.task(
    name=FORECAST_TASK,
    bind=True,
    throws=(JobError,),
    typing=False,
    track_started=False,  # the result backend's begin does it
    resultrepr_maxsize=RESULT_REPR_CHARS,
    Request=ClaimedRequest,
)
def forecast(self: "Task[Any, Any]", /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Compute one job; its result as JSON, or JobError.

    Whatever goes wrong with it becomes a JobError with a code, so that every job ends in one of the two.
    Where nothing is wrong with the job, it goes back to the queue.
    """
    return _Delivery(self, current_process()).answer(args, kwargs)


@signals.task_postrun.connect
def end_claim(task_id: str, task: "Task[Any, Any]", **_: Any) -> None:
    """The outcome is stored, or never will be from here."""
    if task.name == FORECAST_TASK:
        current_process().claims.drop(tag_of(task.request))


class ClaimLost(Exception):
    """Another worker has the job."""


class _Delivery:
    """One delivery of one job; as ``executor.JobContext`` it looks after the job that it has computed."""

    def __init__(self, task: "Task[Any, Any]", process: WorkerProcess) -> None:
        self._process = process
        self._task = task
        self._request: Any = task.request
        self._backend: Any = task.backend
        self._job_id = str(task.request.id)
        self._tag = tag_of(task.request)
        self._claim: Claim | None = None
        self._late_at = math.inf  # by time.monotonic

    def answer(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The task's answer: a result, or one of the exceptions that Celery knows."""
        try:
            result = self._run(job_of(args, kwargs))
        except DiedInEngine as error:
            raise self._handed_back(str(error), is_lost=True) from None
        except EngineDied as error:
            raise self._handed_back(str(error)) from None
        except NotNow as error:
            raise self._handed_back(str(error), error.delay_s) from None
        except ClaimLost:
            raise Ignore from None
        except (Ignore, HandedBack):
            raise
        except (RedisConnectionError, RedisTimeoutError, BackendError, OperationalError) as error:
            raise self._handed_back(f"{type(error).__name__}: {error}", REQUEUE_DELAY_S) from None
        except JobError as error:
            self._process.metrics.count_job(error.code)
            raise
        except Exception:  # the last line of defence: an uncoded error would leak a traceback to the caller
            log.exception("job %s failed on a defect", self._job_id)
            self._process.metrics.count_job(ErrorCode.INTERNAL)
            raise JobError(
                ErrorCode.INTERNAL, "a defect in the worker; report it with the job's id"
            ) from None
        self._process.metrics.count_job(None)
        return result

    def is_cancelled(self) -> bool:
        """Whether the job shall be cancelled; raises ClaimLost where it is another's."""
        if self._claim is not None and self._claim.is_taken_away:
            raise ClaimLost
        if time.monotonic() > self._late_at:
            raise JobError(
                ErrorCode.DEADLINE, "the job was not done within its deadline; allow more time", "deadline_s"
            )
        try:
            return self._process.job_store.is_cancelled(self._job_id)
        except RedisError as error:
            log.warning("job %s: Redis does not say whether it is cancelled: %s", self._job_id, error)
            return False

    def report_progress(self, bars_done: int, bars_total: int) -> None:
        """Store how far it is."""
        try:
            progress = {"bars_done": bars_done, "bars_total": bars_total}
            self._backend.tell(self._process.job_store, self._request, PROGRESS_STATE, progress)
        except RedisError as error:
            log.warning("job %s: its progress could not be stored: %s", self._job_id, error)

    def _run(self, payload: Any) -> dict[str, Any]:
        receipt = self._begin()
        job = read_job(payload, self._process.limits)
        self._process.metrics.observe_job_wait(self._request.delivery_info, job.submitted_at, receipt)
        if receipt.is_suspect:
            if job.deadline_s is not None:
                left_s = job.deadline_s - receipt.waited_s(job.submitted_at)
                self._late_at = time.monotonic() + left_s + LATE_GRACE_S
            return self._run_suspect(payload, receipt)
        return compute(self._process, self._job_id, job, receipt, self._queue(), self)

    def _begin(self) -> Receipt:
        """Take the claim; raises HandedBack while another has it."""
        asked_at = time.monotonic()
        try:
            receipt: Receipt | None = self._backend.begin(
                self._job_id,
                self._request,
                timeout_s=self._process.claims.timeout_s,
                pid=os.getpid(),
                hostname=self._process.node,
            )
        except ResponseError as error:
            if refuses_writes(error):  # as good as away
                raise OperationalError(str(error)) from error
            raise
        if receipt is None:
            # Delivered again after it was done, or submitted twice: the one outcome stands.
            raise Ignore
        if receipt.held_s > 0:
            raise HandedBack("it is computed already", delay_s=receipt.held_s + HELD_MARGIN_S)
        self._claim = self._process.claims.hold(self._job_id, self._tag, asked_at)
        return receipt

    def _run_suspect(self, job: Mapping[str, Any], receipt: Receipt) -> dict[str, Any]:
        """Compute it alone in a process. The job's record counts the processes that ended with it."""
        self._process.capacity.admitted(self._job_id)  # of this process's slots it takes none
        job_store = self._process.job_store
        try:
            return self._process.isolation.compute(self._job_id, job, receipt, self._queue(), self)
        except ChildEnded as ended:
            log.warning("job %s: %s while it was alone there", self._job_id, ended)
            num_lost = job_store.count_lost_alone(self._job_id, self._tag)
            if num_lost is None:
                raise ClaimLost from None
            if num_lost >= MAX_LOST_ALONE:
                raise worker_lost(ended.exit_status) from None
            raise NotNow(str(ended)) from None
        except Unavailable as unavailable:
            log.warning("job %s: it cannot be computed alone now: %s", self._job_id, unavailable)
            num_put_off = job_store.count_put_off(self._job_id, self._tag)
            if num_put_off is not None and num_put_off >= MAX_PUT_OFF:
                raise unavailable.error from None
            raise NotNow(str(unavailable), PUT_OFF_DELAY_S) from None

    def _handed_back(self, reason: str, delay_s: float = 0.0, *, is_lost: bool = False) -> HandedBack:
        self._process.claims.release(self._job_id, self._tag, is_lost=is_lost)
        return HandedBack(reason, delay_s=delay_s)

    def _queue(self) -> str:
        """The queue that the job came by: a CPU worker may be standing in for the gpu pool."""
        delivery = self._request.delivery_info or {}
        return str(delivery.get("routing_key") or self._process.queue)


def worker_lost(exit_status: int) -> JobError:
    """The job's process ended with it each time, and nobody else was in it."""
    how = f"signal {-exit_status}" if exit_status < 0 else f"status {exit_status}"
    return JobError(
        ErrorCode.WORKER_LOST,
        f"every process that computed the job ended with it, the last one by {how}: report it with the job's "
        "id, or ask for fewer paths if memory may be short",
        None,
        {"exit_status": exit_status},
    )
