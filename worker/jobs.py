"""A job's record in Redis: what it holds, when it was first seen, when it ended, whether to cancel it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from redis import Redis

from worker.contract.errors import ErrorCode, JobError
from worker.contract.names import cancel_key, job_key

FINGERPRINT: Final = "fingerprint"
RECEIVED_AT: Final = "received_at"
ENDED_AT: Final = "ended_at"

MAX_WAIT_S: Final = 7 * 24 * 3600
"""How long the record of a job that has not ended is kept."""

VOLATILE_FIELDS: Final = {"submitted_at"}


def fingerprint(payload: Mapping[str, Any]) -> str:
    """The same for two jobs that ask for the same, whenever they were submitted."""
    lasting = {name: value for name, value in payload.items() if name not in VOLATILE_FIELDS}
    canonical = json.dumps(lasting, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


class JobRecords:
    """Reads and writes job records; those of ended jobs live twice as long as results."""

    def __init__(self, redis: Redis, result_ttl_s: int) -> None:
        self._redis = redis
        self._result_ttl_s = result_ttl_s
        self._ttl_s = 2 * result_ttl_s

    def claim(self, job_id: str, payload: Mapping[str, Any]) -> bool:
        """Note what a job holds before it is enqueued; whether it is to be enqueued.

        A job that was submitted before and has its outcome is not computed again, unless its result is no
        longer kept. One that is still under way may be enqueued again: its first outcome stands.

        Raises JobError ID_CONFLICT where the id was used for other content.
        """
        ours, key = fingerprint(payload), job_key(job_id)
        if not self._redis.hsetnx(key, FINGERPRINT, ours) and self._redis.hget(key, FINGERPRINT) != ours:
            raise JobError(
                ErrorCode.ID_CONFLICT,
                f"the id {job_id!r} was used for a job with other content; choose a new one",
            )
        ended_at = self._redis.hget(key, ENDED_AT)
        if ended_at is not None and not self._is_over(ended_at):
            return False
        with self._redis.pipeline() as pipe:
            if ended_at is not None:
                pipe.hdel(key, ENDED_AT, RECEIVED_AT)
                pipe.delete(cancel_key(job_id))
            pipe.expire(key, MAX_WAIT_S)
            pipe.execute()
        return True

    def waited_s(self, job_id: str, submitted_at: float | None) -> float:
        """Seconds since ``submitted_at``, else since the job's first receipt, on Redis's clock."""
        now, key = self.now(), job_key(job_id)
        with self._redis.pipeline() as pipe:
            pipe.hsetnx(key, RECEIVED_AT, now)
            pipe.expire(key, MAX_WAIT_S)
            pipe.hget(key, RECEIVED_AT)
            first_received = float(pipe.execute()[-1])
        return now - (submitted_at if submitted_at is not None else first_received)

    def end(self, job_id: str) -> None:
        """The job came to its outcome, which is stored next; the wish to cancel it is met or moot."""
        with self._redis.pipeline() as pipe:
            pipe.hset(job_key(job_id), ENDED_AT, str(self.now()))
            pipe.expire(job_key(job_id), self._ttl_s)
            pipe.delete(cancel_key(job_id))
            pipe.execute()

    def explain_absence(self, job_id: str) -> JobError | None:
        """Why a job without result will never have one; None where it is still to come."""
        record = self._redis.hgetall(job_key(job_id))
        if not record:
            return JobError(ErrorCode.LOST, "nothing is known of this job any more; submit it anew")
        if ENDED_AT in record and self._is_over(record[ENDED_AT]):
            return JobError(
                ErrorCode.RESULT_EXPIRED,
                f"the job ended, but its result was kept for {self._result_ttl_s} s only; submit it anew, or "
                "have KRONOS_RESULT_TTL_S raised",
            )
        return None

    def has_ended(self, job_id: str) -> bool:
        """Whether the job came to its outcome."""
        return bool(self._redis.hexists(job_key(job_id), ENDED_AT))

    def request_cancel(self, job_id: str) -> None:
        """Ask for a job to be cancelled, wherever it is."""
        self._redis.set(cancel_key(job_id), "1", ex=self._ttl_s)

    def is_cancelled(self, job_id: str) -> bool:
        """Whether somebody asked for it."""
        return bool(self._redis.exists(cancel_key(job_id)))

    def now(self) -> float:
        """Redis's clock, Unix time in seconds."""
        seconds, microseconds = self._redis.time()
        return float(seconds + microseconds / 1e6)

    def _is_over(self, ended_at: str | bytes) -> bool:
        """Whether the result of a job that ended then is no longer kept."""
        return self.now() - float(ended_at) > self._result_ttl_s
