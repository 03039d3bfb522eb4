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

VOLATILE_FIELDS: Final = {"submitted_at"}


def fingerprint(payload: Mapping[str, Any]) -> str:
    """The same for two jobs that ask for the same, whenever they were submitted."""
    lasting = {name: value for name, value in payload.items() if name not in VOLATILE_FIELDS}
    canonical = json.dumps(lasting, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


class JobRecords:
    """Reads and writes job records; they live twice as long as results."""

    def __init__(self, redis: Redis, result_ttl_s: int) -> None:
        self._redis = redis
        self._result_ttl_s = result_ttl_s
        self._ttl_s = 2 * result_ttl_s

    def claim(self, job_id: str, payload: Mapping[str, Any]) -> None:
        """Note what a job holds before it is enqueued.

        Raises JobError ID_CONFLICT where its id was used for other content.
        """
        ours, key = fingerprint(payload), job_key(job_id)
        with self._redis.pipeline() as pipe:
            pipe.hsetnx(key, FINGERPRINT, ours)
            pipe.hdel(key, ENDED_AT)
            pipe.expire(key, self._ttl_s)
            pipe.hget(key, FINGERPRINT)
            first = pipe.execute()[-1]
        if first != ours:
            raise JobError(
                ErrorCode.ID_CONFLICT,
                f"the id {job_id!r} was used for a job with other content; choose a new one",
            )

    def waited_s(self, job_id: str, submitted_at: float | None) -> float:
        """Seconds since ``submitted_at``, else since the job's first receipt, on Redis's clock."""
        now, key = self.now(), job_key(job_id)
        with self._redis.pipeline() as pipe:
            pipe.hsetnx(key, RECEIVED_AT, now)
            pipe.expire(key, self._ttl_s)
            pipe.hget(key, RECEIVED_AT)
            first_received = float(pipe.execute()[-1])
        return now - (submitted_at if submitted_at is not None else first_received)

    def end(self, job_id: str) -> None:
        """The job came to its outcome: the wish to cancel it is met or moot."""
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
        if ENDED_AT in record and self.now() - float(record[ENDED_AT]) > self._result_ttl_s:
            return JobError(
                ErrorCode.RESULT_EXPIRED,
                f"the job ended, but its result was kept for {self._result_ttl_s} s only; submit it anew, or "
                "have KRONOS_RESULT_TTL_S raised",
            )
        return None

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
