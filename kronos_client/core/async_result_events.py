"""AsyncEndings: wakes whoever waits for a job in an asyncio app, without a thread for each of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from kronos_client.contract.names import job_key
from kronos_client.core.async_channel import JobChannel, connect_async

MAX_CONNECTIONS: Final = 2
"""One listens, one looks."""


class AsyncEndings(Protocol):
    """Whoever waits for a job is woken here."""

    def of(self, job_id: str) -> Any:
        """A context manager that gives an asyncio.Event, set whenever something is new of the job."""

    async def may_have_ended(self, job_id: str) -> bool:
        """Whether it is worth a look at what is stored of the job."""

    async def close(self) -> None:
        """Listen no more."""


class AsyncRedisEndings:
    """Of all jobs that are waited for, over two connections."""

    def __init__(self, url: str) -> None:
        self._redis = connect_async(url, MAX_CONNECTIONS)
        self._channel = JobChannel(self._redis, self._wake)
        self._waiting: dict[str, set[asyncio.Event]] = {}

    @asynccontextmanager
    async def of(self, job_id: str) -> AsyncIterator[asyncio.Event]:
        told = asyncio.Event()
        others = self._waiting.setdefault(job_id, set())
        others.add(told)
        try:
            self._channel.start()
            if len(others) == 1:
                await self._channel.add(job_id)
            yield told
        finally:
            others.discard(told)
            if not others and self._waiting.get(job_id) is others:
                del self._waiting[job_id]
                await self._channel.remove(job_id)

    async def may_have_ended(self, job_id: str) -> bool:
        """Where its record says so, or there is none; raises RedisError."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.exists(job_key(job_id))
            pipe.hexists(job_key(job_id), "ended_at")
            is_known, has_ended = await pipe.execute()
        return bool(has_ended or not is_known)

    async def close(self) -> None:
        await self._channel.stop()
        await self._redis.aclose()

    def _wake(self, job_id: str, _: bytes) -> None:
        for told in self._waiting.get(job_id, ()):
            told.set()
