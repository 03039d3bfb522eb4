"""Admission: sends jobs to queues, unless their ids' earlier use or a full queue forbids it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, cast

from redis import Redis
from redis.exceptions import NoScriptError

from kronos_client.contract import names
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.connection import ask_once
from kronos_client.redis.message import Sending, fingerprint, write_message
from kronos_client.redis.queues import MAX_WAIT_S, TAKEN_KEY, list_key, waiting_keys
from kronos_client.redis.scripts import read_script

FREE_SHARE: Final = 0.1
"""The share of a full queue that must be free before senders retry: a single place would be taken at once."""
MAX_LISTED: Final = 10_000
"""Jobs of one kind that can be listed, the newest ones."""
UNKNOWN_RATE_RETRY_S: Final = 60
MAX_RETRY_S: Final = 3600


Sent = Literal["claimed", "kept", "begun"]
"""Why a job needs no more sending: see ``admit.lua``."""


class Admission:
    """Admits jobs to queues of at most ``max_queue_jobs`` messages, all priorities and delayed ones.

    A tenth as many messages of cancelled jobs, up to 64 MiB, do not count.

    Args:
        jobs_per_s: A queue's throughput, called if it is full; 0 if unknown.
        event_exchange: Where Flower and ``celery events`` receive that a job was sent.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        result_ttl_s: int,
        max_queue_jobs: int,
        jobs_per_s: Callable[[str], float] = lambda queue: 0.0,
        event_exchange: str = names.EVENT_EXCHANGE,
    ) -> None:
        self._redis = redis
        self._result_ttl_s = result_ttl_s
        self._max_queue_jobs = max_queue_jobs
        self._jobs_per_s = jobs_per_s
        self._event_exchange = event_exchange
        database = redis.connection_pool.connection_kwargs.get("db") or 0
        self._event_channel = f"/{database}.{event_exchange}/task.sent"  # kombu's, of a fanout exchange
        self._script = redis.register_script(read_script("admit"))

    def admit(self, jobs: Sequence[Sending]) -> list[Sent | Exception]:
        """Record jobs and send their messages, in one round trip. Each one is sent whole or not at all.

        A job that has ended is not computed again while its result is kept. A job under way may be sent
        again, since its first outcome stands; but not if the queue is full and a worker has begun it. If it
        is shared, it is not sent again once a worker has begun it, and is computed again if it failed.

        Returns:
            For each job why it needs no more sending, or an error: JobError ID_CONFLICT, if its id was used
            for other content; QUEUE_FULL; NotConfirmed; or why Redis was not reached or refuses it.
        """
        calls = list(map(self._call, jobs))
        answers = ask_once(self._redis, calls)
        unknown = [place for place, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            calls[unknown[0]][:2] = "EVAL", self._script.script
            again = ask_once(self._redis, [calls[place] for place in unknown])
            for place, answer in zip(unknown, again, strict=True):
                answers[place] = answer
        return list(map(self._outcome, jobs, answers))

    def _call(self, job: Sending) -> list[Any]:
        """The command that runs the script for a job."""
        own = [key(job.job_id) for key in (names.job_key, names.cancel_key, names.result_key)]
        keys = [*own, names.SHARED_KEY, TAKEN_KEY, names.jobs_key(job.kind), *waiting_keys(job.queue)]
        before_time, after_time, event = write_message(job, self._event_exchange)
        message = before_time, after_time, self._event_channel, event
        deadline_s = "" if job.deadline_s is None else job.deadline_s
        limits = fingerprint(job.content), self._result_ttl_s, MAX_WAIT_S, self._max_queue_jobs
        sent_to = list_key(job.queue, names.CELERY_PRIORITIES[job.priority])
        place = sent_to, job.job_id, MAX_LISTED, "shared" if names.is_shared(job.job_id) else ""
        script = "EVALSHA", self._script.sha, len(keys)
        return [*script, *keys, *limits, *place, *message, deadline_s]

    def _outcome(self, job: Sending, answer: Any) -> Sent | Exception:
        if isinstance(answer, Exception):
            return answer
        what, *more = answer
        if what == "conflict":
            return id_conflict(job.job_id)
        if what == "full":
            (length, was_submitted), limit = more, self._max_queue_jobs
            again_s = retry_after_s(length, limit, self._jobs_per_s(job.queue))
            return queue_full(job.queue, length, limit, again_s, was_submitted=bool(was_submitted))
        return cast(Sent, what)


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
