"""A job's record in Redis: when it was first seen, and whether it shall be cancelled."""

from typing import Final

from redis import Redis

from worker.contract.names import cancel_key, job_key

RECORD_FIELD_RECEIVED: Final = "received_at"


class JobRecords:
    """Reads and writes job records; they live ``ttl_s``, twice as long as results."""

    def __init__(self, redis: Redis, ttl_s: int) -> None:
        self._redis = redis
        self._ttl_s = ttl_s

    def request_cancel(self, job_id: str) -> None:
        """Ask for a job to be cancelled, wherever it is."""
        self._redis.set(cancel_key(job_id), "1", ex=self._ttl_s)

    def is_cancelled(self, job_id: str) -> bool:
        """Whether somebody asked for it."""
        return bool(self._redis.exists(cancel_key(job_id)))

    def forget_cancel(self, job_id: str) -> None:
        """The job is terminal; the wish is met or moot."""
        self._redis.delete(cancel_key(job_id))

    def waited_s(self, job_id: str, submitted_at: float | None) -> float:
        """Seconds since ``submitted_at``, else since the job's first receipt, on Redis's clock."""
        seconds, microseconds = self._redis.time()
        now = seconds + microseconds / 1e6
        with self._redis.pipeline() as pipe:
            pipe.hsetnx(job_key(job_id), RECORD_FIELD_RECEIVED, now)
            pipe.expire(job_key(job_id), self._ttl_s)
            pipe.hget(job_key(job_id), RECORD_FIELD_RECEIVED)
            first_received = float(pipe.execute()[-1])
        return now - (submitted_at if submitted_at is not None else first_received)
