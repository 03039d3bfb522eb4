"""LostJobs: finds jobs without an outcome that no worker will get."""

import time
from collections.abc import Mapping
from typing import Any, Final

from redis.exceptions import ResponseError

from kronos_client.contract.names import worker_key
from kronos_client.contract.worker_status import AnyWorkerStatus
from kronos_client.redis.job_record import JobRecord
from kronos_client.redis.routing import WORKERS_KEY, read_announcements

SEEN_FOR_S: Final = 2.0
MAX_SUSPECTS: Final = 10_000


class LostJobs:
    """A job is lost if two reads say that its message is gone, and no other read in between.

    The reads are ``SEEN_FOR_S`` apart; for a message that a delivery holds also its timeout: after an outage
    of Redis or of all workers, they need that long to renew or to put back what was held.

    Args:
        redis: An asyncio connection that answers in bytes.
    """

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._suspects: dict[str, tuple[str | None, float]] = {}  # by job id: where it was, and since when

    def forget(self) -> None:
        """Begin again: Redis did not answer, and workers may have been cut off too."""
        self._suspects.clear()

    async def among(self, records: Mapping[str, JobRecord], now_s: float) -> set[str]:
        """The ids of those that are lost. Reads the announcements of workers only if a message seems gone.

        Args:
            records: Of jobs without an outcome, by id.
            now_s: Redis's clock.
        """
        gone = {job_id: record for job_id, record in records.items() if record.is_gone(now_s)}
        if gone:
            workers = await self._workers()
            gone = {job_id: record for job_id, record in gone.items() if record.is_gone_for(workers)}
        for job_id in records.keys() - gone.keys():
            self._suspects.pop(job_id, None)
        if len(self._suspects) > MAX_SUSPECTS:  # of callers that no longer ask
            self._suspects.clear()
        return {job_id for job_id, record in gone.items() if self._is_sure(job_id, record)}

    def _is_sure(self, job_id: str, record: JobRecord) -> bool:
        now, at, place = time.monotonic(), record.text("at"), record.place
        if self._suspects.get(job_id, (None,))[0] != at:
            self._suspects[job_id] = (at, now)
        seen_for_s = now - self._suspects[job_id][1]
        return seen_for_s >= max(SEEN_FOR_S, place.timeout_s if place else 0.0)

    async def _workers(self) -> list[AnyWorkerStatus]:
        try:
            members = await self._redis.zrange(WORKERS_KEY, 0, -1)
        except ResponseError:  # another app's key
            return []
        nodes = [member.decode(errors="replace") for member in members]
        return read_announcements(nodes, await self._redis.mget(map(worker_key, nodes)) if nodes else [])
