"""Admission: whether a job may be enqueued, by its id's earlier use and the room in its queue.

Others may be admitted between the check and the sending: a queue may exceed its limit by one job for each
thread that enqueues at that moment.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from redis import Redis

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.job_ids import is_shared
from kronos_client.contract.names import (
    CELERY_PRIORITIES,
    SHARED_KEY,
    Kind,
    Priority,
    cancel_key,
    job_key,
    jobs_key,
    result_key,
)
from kronos_client.redis.job_store import MAX_WAIT_S, fingerprint
from kronos_client.redis.queues import TAKEN_KEY, list_key, waiting_keys
from kronos_client.redis.scripts import read_script

FREE_SHARE: Final = 0.1
"""The share of a full queue that must be free before senders retry: a single place would be taken at once."""
MAX_LISTED: Final = 10_000
"""Jobs of one kind that can be listed, the newest ones."""
UNKNOWN_RATE_RETRY_S: Final = 60
MAX_RETRY_S: Final = 3600


class Admission:
    """Admits jobs to queues of at most ``max_queue_jobs`` messages, all priorities and delayed ones.

    A tenth as many messages of cancelled jobs, up to 64 MiB, do not count.
    """

    def __init__(self, redis: Redis, *, result_ttl_s: int, max_queue_jobs: int) -> None:
        self._result_ttl_s = result_ttl_s
        self._max_queue_jobs = max_queue_jobs
        self._run = redis.register_script(read_script("admit"))

    def admit(
        self,
        job_id: str,
        payload: Mapping[str, Any] | str,
        queue: str,
        jobs_per_s: Callable[[], float],
        priority: Priority = "normal",
        kind: Kind = "forecast",
    ) -> float | None:
        """Record a job's content before it is enqueued.

        A job that has ended is not computed again while its result is kept. A job under way may be enqueued
        again, since its first outcome stands; but not if the queue is full and a worker has begun it. If it
        is shared, it is not enqueued again once a worker has begun it, and is computed again if it failed.

        Args:
            payload: The job, or its canonical JSON.
            jobs_per_s: The queue's throughput, called if the queue is full; 0 if unknown.
            kind: The list of jobs that has it.

        Returns:
            The time of admission; None if the job is not to be enqueued.

        Raises:
            JobError: ID_CONFLICT if the id was used for other content; QUEUE_FULL.
        """
        now, answer, *more = self._run(
            keys=[
                *(job_key(job_id), cancel_key(job_id), result_key(job_id), SHARED_KEY),
                *(TAKEN_KEY, jobs_key(kind)),
                *waiting_keys(queue),
            ],
            args=[
                *(fingerprint(payload), self._result_ttl_s, MAX_WAIT_S, self._max_queue_jobs),
                *(list_key(queue, CELERY_PRIORITIES[priority]), job_id, MAX_LISTED),
                "shared" if is_shared(job_id) else "",
            ],
        )
        if answer == "conflict":
            raise id_conflict(job_id)
        if answer == "full":
            (length, was_submitted), limit = more, self._max_queue_jobs
            again_s = retry_after_s(length, limit, jobs_per_s())
            raise queue_full(queue, length, limit, again_s, was_submitted=bool(was_submitted))
        return float(now) if answer == "claimed" else None


def id_conflict(job_id: str) -> JobError:
    """The error of an id that was used for other content."""
    message = f"the id {job_id!r} was used for a job with other content; choose a new one"
    return JobError(ErrorCode.ID_CONFLICT, message)


def queue_full(queue: str, length: int, limit: int, again_s: int, *, was_submitted: bool = False) -> JobError:
    """The error of a queue without room."""
    message = (
        f"{length} jobs wait in queue {queue}, its limit is {limit}; submit this job again in {again_s} s"
    )
    if was_submitted:
        message += (
            ". It was submitted before under this job_id and may be one of them: submitting again is safe"
        )
    details = {"queue": queue, "length": length, "limit": limit, "retry_after_s": again_s}
    return JobError(ErrorCode.QUEUE_FULL, message, None, details)


def retry_after_s(length: int, limit: int, jobs_per_s: float) -> int:
    """Whole seconds until a tenth of a full queue's places are free at this rate, 1 s to an hour."""
    if jobs_per_s <= 0:
        return UNKNOWN_RATE_RETRY_S
    num_jobs = length - limit + max(1, math.floor(FREE_SHARE * limit))
    return min(MAX_RETRY_S, math.ceil(num_jobs / jobs_per_s))
