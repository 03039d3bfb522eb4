"""LostJobs: finds jobs without an outcome that no worker will get."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from redis import Redis

from kronos_client.redis.job_record import JobRecord
from kronos_client.redis.routing import live_workers

SEEN_FOR_S: Final = 2.0


class LostJobs:
    """A job is lost if two reads say that its message is gone, and none in between says otherwise.

    They are ``SEEN_FOR_S`` apart, and for a message that a delivery holds also its timeout: after an outage
    of Redis or of all workers, they need that long to renew or put back what was held.

    Attributes:
        suspects: Since when a job's message seems gone, by the job's id and where its record says it is. To
            be cleared if Redis does not answer: then it may not answer workers either.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.suspects: dict[tuple[str, str], float] = {}

    async def among(self, records: Mapping[str, JobRecord], now: float) -> set[str]:
        """The ids of the lost ones. Asks Redis for the workers only if a message seems gone.

        Args:
            records: By the jobs' ids. A job that has its outcome may be among the lost ones.
            now: Redis's clock.
        """
        gone = {(job_id, one.fields["at"]): one for job_id, one in records.items() if one.is_gone(now)}
        if gone:
            workers = await asyncio.to_thread(live_workers, self._redis)
            gone = {seen: record for seen, record in gone.items() if record.is_gone_for(workers)}
        since = {seen: at for seen, at in self.suspects.items() if seen in gone or seen[0] not in records}
        self.suspects = dict.fromkeys(gone, time.monotonic()) | since
        return {
            seen[0]
            for seen, record in gone.items()
            if time.monotonic() - self.suspects[seen] >= max(SEEN_FOR_S, record.timeout_s)
        }
