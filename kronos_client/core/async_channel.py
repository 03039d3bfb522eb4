"""JobChannel: hears over one connection what workers tell of jobs, in an event loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisError

from kronos_client.contract.names import KEY_PREFIX
from kronos_client.core.result_events import job_id_of, result_key
from kronos_client.redis.connection import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S

log = logging.getLogger(__name__)

POLL_S: Final = 1.0
RECONNECT_S: Final = 0.5
OWN_CHANNEL: Final = f"{KEY_PREFIX}nobody"
"""Nobody publishes there: a connection that listens to nothing cannot be read."""


def connect_async(url: str, max_connections: int) -> Redis:
    """A client that never opens more connections, whoever asks: the others wait their turn."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=CONNECT_TIMEOUT_S + ANSWER_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=ANSWER_TIMEOUT_S,
        socket_keepalive=True,
        health_check_interval=25,
        retry=Retry(ConstantBackoff(0.2), 1),
    )
    return Redis(connection_pool=pool)


class JobChannel:
    """By pub/sub. What is told while the connection is lost is missed: who waits looks now and then too.

    Lives on one event loop, from ``start`` to ``stop``.

    Args:
        hear: called with a job's id and what Celery stored of it, as bytes, as soon as a worker tells it.
    """

    def __init__(self, redis: Redis, hear: Callable[[str, bytes], object]) -> None:
        self._hear = hear
        self._pubsub: Any = redis.pubsub(ignore_subscribe_messages=True)
        self._listener: asyncio.Task[None] | None = None
        self._is_over = False
        # The first to subscribe connects; two at once would be two connections, one of which nobody reads.
        self._subscribing = asyncio.Lock()

    def start(self) -> None:
        """Listen from now on, as soon as Redis is there; a second call does nothing."""
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen())

    async def stop(self) -> None:
        """Listen no more."""
        self._is_over = True
        if self._listener is not None:
            await cancel(self._listener)
        with suppress(RedisError, OSError):
            await self._pubsub.aclose()

    async def add(self, job_id: str) -> None:
        """Hear of this job."""
        await self._command(self._pubsub.subscribe, result_key(job_id))

    async def remove(self, job_id: str) -> None:
        """No longer."""
        await self._command(self._pubsub.unsubscribe, result_key(job_id))

    async def _command(self, command: Callable[[str], Awaitable[object]], name: str) -> None:
        """What Redis does not take now, redis-py says again once it connects."""
        async with self._subscribing:
            with suppress(RedisError, OSError):
                await command(name)

    async def _listen(self) -> None:
        is_subscribed = False
        while not self._is_over:
            try:
                if not is_subscribed:
                    async with self._subscribing:
                        await self._pubsub.subscribe(OWN_CHANNEL)
                    is_subscribed = True
                message = await self._pubsub.get_message(timeout=POLL_S)
            except (RedisError, OSError) as error:
                log.debug("Redis is away: %s", error)
                await asyncio.sleep(RECONNECT_S)
                continue
            if message is not None:
                self._hear(job_id_of(message["channel"].decode()), message["data"])


async def cancel(*tasks: asyncio.Task[None]) -> None:
    """End tasks that look now and then whether they are to end.

    redis-py may swallow a cancellation that comes as an answer does; the next one ends them then.
    """
    while alive := [task for task in tasks if not task.done()]:
        for task in alive:
            task.cancel()
        await asyncio.wait(alive, timeout=POLL_S)
