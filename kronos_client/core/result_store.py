"""ResultStore: reads jobs' stored states, and receives new ones as they are published; RedisResultStore."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from redis import Redis as SyncRedis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisError

from kronos_client.contract import states
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import KEY_PREFIX, job_key, result_key
from kronos_client.core.lost_jobs import LostJobs
from kronos_client.core.stored import FORGOTTEN, LOST, NOTHING, Stored, encode_failure, lost, read_stored
from kronos_client.redis.connection import pool_options
from kronos_client.redis.job_record import JobRecord
from kronos_client.settings import ClientSettings

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 2
"""One connection subscribes, one reads."""
POLL_S: Final = 1.0
RECONNECT_S: Final = 0.5
OWN_CHANNEL: Final = f"{KEY_PREFIX}nobody"
"""An unused channel: redis-py cannot read from a connection without subscriptions."""

ANOTHER_APPS: Final = {b"": b""}
"""The record of a job whose key another app wrote: its worker ends the job."""

OnState = Callable[[str, Stored], object]
"""Called with a job's id and its published state."""


class ResultStore(Protocol):
    """The stored states of jobs, in Redis or in a test's memory. Lives on one event loop.

    ``read`` and ``forget`` raise RedisError if Redis does not answer.
    """

    def start(self, on_state: OnState) -> None:
        """Call ``on_state`` with each state published from now on. A second call does nothing."""

    async def subscribe(self, job_ids: Sequence[str]) -> None:
        """Receive these jobs' states."""

    async def unsubscribe(self, job_ids: Sequence[str]) -> None:
        """No longer receive these jobs' states."""

    async def read(self, job_ids: Sequence[str]) -> list[Stored]:
        """Read the stored state of each job."""

    async def forget(self, job_id: str, *, has_result: bool = False) -> bool:
        """Delete a result; returns whether there was one. ``has_result`` skips checking that there is one."""

    async def close(self) -> None:
        """Close the connections."""


class RedisResultStore:
    """The ``ResultStore`` in Redis. It misses states that are published while the connection is lost.

    With ``max_connections`` open, further reads wait for a free one.

    Args:
        redis: For reading which workers live, on a thread.
    """

    def __init__(
        self, settings: ClientSettings, redis: SyncRedis, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        url = settings.redis_url.get_secret_value()
        options, retry = pool_options(url, max_connections), Retry(ConstantBackoff(0.2), 1)
        pool = BlockingConnectionPool.from_url(**options, retry=retry)
        self._redis = Redis.from_pool(pool)  # so that closing it closes the pool
        self._lost_jobs = LostJobs(redis)
        self._result_ttl_s = settings.result_ttl_s
        self._pubsub: Any = self._redis.pubsub(ignore_subscribe_messages=True)
        self._listener: asyncio.Task[None] | None = None
        self._is_closed = False
        # The first subscription connects. Two at once would open two connections, one of them never read.
        self._subscribing = asyncio.Lock()

    def start(self, on_state: OnState) -> None:
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(on_state))

    async def close(self) -> None:
        self._is_closed = True
        if self._listener is not None:
            await _end(self._listener)
        with suppress(RedisError, OSError):
            await self._pubsub.aclose()
        await self._redis.aclose()

    async def subscribe(self, job_ids: Sequence[str]) -> None:
        await self._command(self._pubsub.subscribe, *job_ids)

    async def unsubscribe(self, job_ids: Sequence[str]) -> None:
        await self._command(self._pubsub.unsubscribe, *job_ids)

    async def read(self, job_ids: Sequence[str]) -> list[Stored]:
        async with self._redis.pipeline(transaction=False) as pipe:
            # The records first: if a job's record has ended, its result is there by now, or expired.
            for job_id in job_ids:
                pipe.hgetall(job_key(job_id))
            pipe.mget([result_key(job_id) for job_id in job_ids])
            pipe.time()
            try:
                answers = await pipe.execute(raise_on_error=False)
                for answer in answers:  # a key of another type concerns one job
                    if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):
                        raise answer
            except RedisError:
                self._lost_jobs.suspects.clear()
                raise
        *answered, results, (seconds, microseconds) = answers
        records = [JobRecord(one if isinstance(one, dict) else ANOTHER_APPS) for one in answered]
        now_s = seconds + microseconds / 1e6
        lost_ids = await self._lost_jobs.among(dict(zip(job_ids, records, strict=True)), now_s)
        found = []
        for job_id, record, data in zip(job_ids, records, results, strict=True):
            stored = self._absent(record, now_s) if data is None else read_stored(job_id, data)
            is_lost = job_id in lost_ids and not stored.has_ended
            found.append(stored._replace(absence=lost(job_id)) if is_lost else stored)
        return found

    async def forget(self, job_id: str, *, has_result: bool = False) -> bool:
        """Replace the result by a short error, so that the job is not computed again.

        The error expires when the result would have. A job that goes on or failed stays as it is.
        """
        key = result_key(job_id)
        if not has_result:
            data = await self._redis.get(key)
            if data is None or read_stored(job_id, data).status != states.SUCCESS:
                return False
        # XX: the first outcome stands. The key still holds the result, or has expired.
        return bool(await self._redis.set(key, encode_failure(job_id, FORGOTTEN), xx=True, keepttl=True))

    def _absent(self, record: JobRecord, now_s: float) -> Stored:
        if not record.fields:
            return Stored(absence=LOST)
        if now_s - (record.number("ended_at") or now_s) <= self._result_ttl_s:
            return NOTHING
        kept = f"the job ended, but its result was kept for only {self._result_ttl_s} s"
        remedy = "submit it again, or raise KRONOS_RESULT_TTL_S"
        return Stored(absence=JobError(ErrorCode.RESULT_EXPIRED, f"{kept}; {remedy}"))

    async def _command(self, command: Callable[..., Awaitable[object]], *job_ids: str) -> None:
        async with self._subscribing:
            with suppress(RedisError, OSError):  # redis-py repeats the command after reconnecting
                await command(*map(result_key, job_ids))

    async def _listen(self, on_state: OnState) -> None:
        is_subscribed = False
        while not self._is_closed:
            try:
                if not is_subscribed:
                    async with self._subscribing:
                        await self._pubsub.subscribe(OWN_CHANNEL)
                    is_subscribed = True
                message = await self._pubsub.get_message(timeout=POLL_S)
            except (RedisError, OSError) as error:
                log.debug("Redis does not answer: %s", error)
                await asyncio.sleep(RECONNECT_S)
                continue
            if message is not None:
                job_id = message["channel"].decode().removeprefix(result_key(""))
                on_state(job_id, read_stored(job_id, message["data"]))


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it ends: redis-py may swallow a cancellation that comes with an answer."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=POLL_S)
