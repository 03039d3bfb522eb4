"""What both kinds of tasks share: how one delivery of a job gets its claim, and goes back to the queue."""

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from billiard.einfo import ExceptionInfo
from celery import signals, states
from celery.exceptions import Ignore, Reject
from celery.worker.request import Request

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import TASK_ROLES, Priority
from kronos_client.core.stored import encode_state
from kronos_client.redis.job_store import Beginning, Begun, Ending, Receipt
from kronos_client.redis.queues import priority_of
from kronos_model.text import dotted
from worker.broker import transport
from worker.broker.claims import Claim
from worker.broker.outcomes import store_health
from worker.broker.result_backend import tag_of
from worker.celery_types import AnyTask
from worker.monitoring.tracing import new_trace
from worker.process import WorkerProcess, current

log = logging.getLogger(__name__)

HELD_MARGIN_S: Final = 0.1
"""Seconds to wait after another worker's claim ends."""


class Requeued(Reject):
    """The job goes back to its queue and is delivered again after ``delay_s``. No thread waits meanwhile."""

    def __init__(self, reason: str, requeue: bool = True, delay_s: float = 0.0) -> None:
        super().__init__(reason, requeue)
        self.delay_s = delay_s

    def __str__(self) -> str:
        return str(self.args[0])


def without_traceback(record: logging.LogRecord) -> bool:
    """Logging filter: a job that goes back takes one line, which has the reason.

    It takes none while Redis refuses all jobs: one line a minute says that.
    """
    if isinstance(record.exc_info, tuple) and isinstance(record.exc_info[1], Requeued):
        record.exc_info = None
        return store_health.problem is None
    return True


# Celery (5.7) logs each rejected task with its traceback, and has no setting for it.
logging.getLogger("celery.app.trace").addFilter(without_traceback)


class ClaimedRequest(Request):
    """Celery's request (5.7) for a job that runs under a claim."""

    def info(self, safe: bool = True) -> Any:
        """The answer to Celery's ``inspect``, with the short form of the arguments, without candles."""
        return super().info(safe=True)

    def on_failure(self, exc_info: ExceptionInfo, *args: bool, **kwargs: bool) -> None:
        """Celery calls it also for rejected jobs."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)  # billiard wraps it
        if isinstance(error, Requeued) and error.delay_s > 0:
            transport.message_consumer().delay(self.message.delivery_tag, error.delay_s)
        super().on_failure(exc_info, *args, **kwargs)


@signals.task_postrun.connect
def end_claim(task_id: str, task: AnyTask, retval: object = None, **_: object) -> None:
    """Drop the claim: the outcome is stored, or this attempt stores none."""
    if (trace := getattr(task.request, "trace", None)) is not None:  # a long job's
        trace.ended(retval if isinstance(retval, Exception) else None)
    if task.name in TASK_ROLES and current.process is not None:
        current.process.claims.drop(tag_of(task.request))


JOB_TASK: Final[dict[str, Any]] = {
    "bind": True,
    "throws": (JobError,),
    "typing": False,
    "track_started": False,  # ``Attempt.beginning`` does it
    "resultrepr_maxsize": 64,  # in events and Flower; all of a forecast's numbers would take long to write
    "Request": ClaimedRequest,
}
"""Options of the tasks that compute jobs."""


def einfo_of(error: Exception) -> ExceptionInfo:
    """An error as Celery's requests take it: it must have a traceback, so it must have been raised."""
    try:
        raise error
    except Exception:  # noqa: BLE001  it is any
        info = ExceptionInfo()
        info.exception = error  # Flower shows it; billiard wraps it
        return info
    finally:
        error.__traceback__ = None  # its frames refer to it, and to the job's tensors


class Attempt:
    """One worker's attempt at a job.

    ``request`` is Celery's context of the delivery.
    """

    _process: WorkerProcess

    def __init__(self, request: Any, process: WorkerProcess) -> None:
        self._process, self._request = process, request
        self.job_id = str(request.id)
        self.tag = tag_of(request)
        # As the list says that held the job. A CPU worker may also take from the gpu queue.
        self._queue = str(request.delivery_info["routing_key"])
        self._priority: Priority = priority_of(request.delivery_info.get("priority"))
        self.trace = new_trace(self.job_id, self._queue, getattr(request, "traceparent", None))
        # Seconds that the sender allows from the start of the job: Celery's ``time_limit``.
        self._time_limit_s: float = getattr(request, "time_limit_s", None) or math.inf

    def beginning(self, content: str = "") -> Beginning:
        """What begins the job in Redis. It replaces Celery's ``track_started``, a round trip of its own."""
        started = {"pid": os.getpid(), "hostname": self._process.node}
        return Beginning(self.job_id, encode_state(self.job_id, states.STARTED, started), self.tag, content)

    def _claimed(
        self, answer: Begun | Exception, asked_at: float, on_tick: Callable[[], object] = lambda: None
    ) -> tuple[Receipt, Claim]:
        """The claim on the job, by Redis's answer to the request at that moment.

        Args:
            on_tick: As of ``Claim``.

        Raises:
            Requeued: Another worker has the claim.
            Ignore: The job already has its outcome, or another job has its id.
            JobError: An app wrote a key of another type where the job's record should be.
            RedisError: Redis does not store it now.
        """
        if isinstance(answer, Exception):
            raise answer
        if answer == "ended":
            # Delivered again after it ended, or submitted twice: the first outcome stays.
            self._process.outcomes.end(Ending(self.job_id, "", self.tag))
            raise Ignore
        if answer == "conflict":
            reason = "another job has this id and is under way"
            transport.message_consumer().bury(self.tag, self.job_id, reason)
            raise Ignore
        if answer.held_s > 0:
            raise Requeued("another worker has the job", delay_s=answer.held_s + HELD_MARGIN_S)
        return answer, self._process.claims.hold(self.job_id, self.tag, asked_at, on_tick)

    def _requeued(self, reason: str, delay_s: float = 0.0, *, is_lost: bool = False) -> Requeued:
        """Release the claim. ``is_lost`` counts this attempt as one whose process died."""
        self._process.claims.release(self.job_id, self.tag, reason, is_lost=is_lost)
        return Requeued(reason, delay_s=delay_s)


def job_of(args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """The job, which must be the only argument ``job``. Raises JobError otherwise."""
    unknown = sorted(set(kwargs) - {"job"})
    if args or unknown:
        text = "send the job as the keyword argument 'job', and nothing else"
        raise JobError(ErrorCode.UNKNOWN_FIELD, text, dotted((unknown[0],)) if unknown else None)
    if "job" not in kwargs:
        raise JobError(ErrorCode.MISSING_FIELD, "the keyword argument 'job' is missing", "job")
    return kwargs["job"]
