"""What both kinds of tasks share: how one delivery of a job gets its claim, and goes back to the queue."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from celery import Task
from celery.exceptions import Ignore
from redis.exceptions import ResponseError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.connection import refuses_writes
from kronos_client.redis.job_store import Receipt
from kronos_model.text import dotted
from worker.broker.claims import Claim
from worker.broker.result_backend import tag_of
from worker.process import WorkerProcess
from worker.tasks.delivery import HELD_MARGIN_S, REQUEUE_DELAY_S, ClaimedRequest, HandedBack

JOB_TASK: Final[dict[str, Any]] = {
    "bind": True,
    "throws": (JobError,),
    "typing": False,
    "track_started": False,  # the result backend's begin does it
    "resultrepr_maxsize": 64,  # in events and Flower; all of a forecast's numbers would take long to write
    "Request": ClaimedRequest,
}
"""Options of the tasks that compute jobs."""


class Attempt:
    """One worker's attempt at a job."""

    _process: Any

    def __init__(self, task: "Task[Any, Any]", process: WorkerProcess) -> None:
        self._process = process
        self._request: Any = task.request
        self._backend: Any = task.backend
        self._job_id = str(task.request.id)
        self._tag = tag_of(task.request)

    @property
    def _queue(self) -> str:
        """The queue that the job came from. A CPU worker may also take from the gpu queue."""
        delivery = self._request.delivery_info or {}
        return str(delivery.get("routing_key") or self._process.queue)

    def _begin(self, content: str = "", chore: Callable[[], object] = lambda: None) -> tuple[Receipt, Claim]:
        """Claim the job.

        Args:
            content: The job's fingerprint, if a different job with the same id must be dropped.
            chore: Called about once a second while the claim is held.

        Raises:
            HandedBack: Another worker has the claim, or Redis accepts no writes.
            Ignore: The job already has its outcome.
        """
        asked_at = time.monotonic()
        try:
            receipt: Receipt | None = self._backend.begin(
                self._job_id,
                self._request,
                timeout_s=self._process.claims.timeout_s,
                content=content,
                pid=os.getpid(),
                hostname=self._process.node,
            )
        except ResponseError as error:
            if refuses_writes(error):  # as if Redis were away
                raise self._handed_back(str(error), REQUEUE_DELAY_S) from error
            raise
        if receipt is None:
            # Delivered again after it ended, or submitted twice: the first outcome stays.
            raise Ignore
        if receipt.held_s > 0:
            raise HandedBack("another worker has the job", delay_s=receipt.held_s + HELD_MARGIN_S)
        return receipt, self._process.claims.hold(self._job_id, self._tag, asked_at, chore)

    def _handed_back(self, reason: str, delay_s: float = 0.0, *, is_lost: bool = False) -> HandedBack:
        """Release the claim. ``is_lost`` counts this attempt as one whose process died."""
        self._process.claims.release(self._job_id, self._tag, is_lost=is_lost)
        return HandedBack(reason, delay_s=delay_s)


def job_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The job, which must be the only argument ``job``. Raises JobError otherwise."""
    unknown = sorted(set(kwargs) - {"job"})
    if args or unknown:
        raise JobError(
            ErrorCode.UNKNOWN_FIELD,
            "send the job as the keyword argument 'job', and nothing else",
            dotted((unknown[0],)) if unknown else None,
        )
    if "job" not in kwargs:
        raise JobError(ErrorCode.MISSING_FIELD, "the keyword argument 'job' is missing", "job")
    return kwargs["job"]
