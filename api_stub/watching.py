"""Waiting for jobs: one connection to Redis hears of all that are waited for, however many clients wait.

Workers publish each state of a job under the key at which they store it. What is missed, as while Redis is
away, is found by a look at all keys every few seconds.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from celery import states
from pydantic_core import from_json
from redis.asyncio import Redis
from redis.exceptions import RedisError

from kronos_client.contract.names import job_key
from kronos_client.core.async_channel import JobChannel, cancel
from kronos_client.core.result_events import result_key

log = logging.getLogger(__name__)

Meta = dict[str, Any]
"""What Celery stores of a job: ``status``, ``result`` and more."""

LOOK_INTERVAL_S: Final = 2.0
KEYS_AT_ONCE: Final = 100


class Followed:
    """One client's view of a job.

    Attributes:
        meta: the newest state that is known.
        is_missing: nothing is known of the job any more.
        is_released: whoever waits is to wait no longer, however the job goes on.
    """

    def __init__(self, *, is_released: bool = False) -> None:
        self._changed = asyncio.Event()
        self.meta: Meta | None = None
        self.is_missing = False
        self.is_released = is_released

    async def change(self, timeout_s: float) -> bool:
        """Whether something new is known, within the time."""
        try:
            async with asyncio.timeout(None if timeout_s == math.inf else timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    @property
    def has_ended(self) -> bool:
        """Whether the job came to its outcome."""
        return self.meta is not None and self.meta["status"] in states.READY_STATES

    def tell(self, meta: Meta) -> None:
        """A state of the job; the first outcome stands."""
        if self.has_ended or meta == self.meta:
            return
        self.meta, self.is_missing = meta, False
        self._changed.set()

    def miss(self) -> None:
        """There is neither a state nor a record of the job."""
        if self.meta is None and not self.is_missing:
            self.is_missing = True
            self._changed.set()

    def release(self) -> None:
        """Wait no longer."""
        self.is_released = True
        self._changed.set()


class ResultWatch:
    """Hears of the jobs that are followed. Lives on one event loop, between ``start`` and ``stop``."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._channel = JobChannel(redis, self._tell)
        self._followed: dict[str, set[Followed]] = {}
        self._looker: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._is_over = False
        self.is_released = False

    async def start(self) -> None:
        """Listen from now on, as soon as Redis is there."""
        self._channel.start()
        self._looker = asyncio.create_task(self._look_often())

    async def stop(self) -> None:
        """Give up the connections."""
        self._is_over = True
        if self._looker is not None:
            await cancel(self._looker)
        await cancel(*self._asking)
        await self._channel.stop()
        await self._redis.aclose()

    def release(self) -> None:
        """Whoever follows a job now or later is to wait no longer: this process ends."""
        self.is_released = True
        for watchers in self._followed.values():
            for followed in watchers:
                followed.release()

    @property
    def num_followed(self) -> int:
        """Jobs that somebody waits for now."""
        return len(self._followed)

    @asynccontextmanager
    async def follow(self, job_id: str) -> AsyncIterator[Followed]:
        """A job's states while the block lasts; the one that is stored already comes first."""
        followed = Followed(is_released=self.is_released)
        watchers = self._followed.setdefault(job_id, set())
        watchers.add(followed)
        try:
            await self._aside(self._begin(job_id, is_first=len(watchers) == 1))
            yield followed
        finally:
            watchers.discard(followed)
            if not watchers and self._followed.get(job_id) is watchers:
                del self._followed[job_id]
                self._started(self._leave(job_id))  # nobody waits for it

    async def _aside(self, asking: Coroutine[Any, Any, None]) -> None:
        """Wait for a task of its own, since redis-py may swallow that a request's time is over."""
        task = self._started(asking)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise

    def _started(self, asking: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(asking)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task

    async def _begin(self, job_id: str, *, is_first: bool) -> None:
        if is_first:
            await self._channel.add(job_id)
        with suppress(RedisError, OSError):  # the next look makes up for it
            await self._look([job_id])

    async def _leave(self, job_id: str) -> None:
        if job_id not in self._followed:  # else somebody came back, who hears of it already
            await self._channel.remove(job_id)

    def _tell(self, job_id: str, data: bytes) -> None:
        if job_id not in self._followed:
            return
        try:
            meta = from_json(data)
        except ValueError:
            meta = None
        if not isinstance(meta, dict) or not isinstance(meta.get("status"), str):
            log.warning("what is stored of job %r cannot be read", job_id)  # workers store nothing like it
            return
        for followed in self._followed[job_id]:
            followed.tell(meta)

    async def _look_often(self) -> None:
        while not self._is_over:
            await asyncio.sleep(LOOK_INTERVAL_S)
            with suppress(RedisError, OSError):
                job_ids = list(self._followed)
                for start in range(0, len(job_ids), KEYS_AT_ONCE):
                    await self._look(job_ids[start : start + KEYS_AT_ONCE])

    async def _look(self, job_ids: Iterable[str]) -> None:
        """Read what is stored of these jobs."""
        job_ids = list(job_ids)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.mget([result_key(job_id) for job_id in job_ids])
            for job_id in job_ids:
                pipe.exists(job_key(job_id))
            stored, *are_known = await pipe.execute()
        for job_id, data, is_known in zip(job_ids, stored, are_known, strict=True):
            if data is not None:
                self._tell(job_id, data)
            elif not is_known:
                for followed in self._followed.get(job_id, ()):
                    followed.miss()
