"""Access to Redis and Celery for requests: blocking calls on a few threads, waiting without any."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, ParamSpec, Self, TypeVar

from fastapi import Depends, Request

from api_stub.settings import ApiSettings
from kronos_client.contract.errors import JobError
from kronos_client.contract.names import DEAD_KEY, SHARED_KEY, Kind
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus
from kronos_client.core.core import Core
from kronos_client.core.dispatcher import RedisDispatcher
from kronos_client.core.job_facts import JobFacts, ListedJob, dead_messages, list_jobs, read_job
from kronos_client.core.result_store import RedisResultStore
from kronos_client.core.stored import Stored
from kronos_client.feeds.store import FeedStore
from kronos_client.redis.connection import reachable, unanswered
from kronos_client.redis.queues import QueueState, queue_states
from kronos_client.redis.routing import live_workers

MAX_THREADS: Final = 16
"""Threads that enqueue and read. More would only wait for Python's lock or for Redis."""
MAX_READINGS: Final = 1
"""Uploaded files read at once. Each may take ``file_process.MAX_MEMORY_BYTES``."""
POOL_CACHE_S: Final = 1.0
POOL_TIMEOUT_S: Final = 4.0
"""Seconds to read workers and queues. Health probes usually wait 5 s."""
JOB_TIMEOUT_S: Final = 10.0
"""Seconds to read or cancel a job."""
THREAD_TIMEOUT_S: Final = 10.0
"""Seconds that a call waits for a free thread."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Pool:
    """The live workers, what waits in each queue, and the numbers of shared jobs so far and dead messages."""

    workers: list[AnyWorkerStatus]
    queues: Mapping[str, QueueState]
    num_shared: int = 0
    num_dead: int = 0

    @property
    def forecasting(self) -> list[ForecastWorkerStatus]:
        """The workers for forecasts."""
        return [worker for worker in self.workers if isinstance(worker, ForecastWorkerStatus)]


class Backend:
    """Sends jobs and waits for them, on one event loop. Use it as an async context."""

    def __init__(self, settings: ApiSettings) -> None:
        self.settings = settings
        self.started = time.monotonic()
        self.dispatcher = RedisDispatcher(settings)
        self.feeds = FeedStore.from_settings(settings)
        store = RedisResultStore(settings, self.dispatcher.redis)
        self.core = Core(settings, self.dispatcher, store, call=self.call, away_for_s=JOB_TIMEOUT_S)
        self.events = self.core.events
        # An abandoned call runs until its Redis timeout. The pool limits the number of such calls.
        self._threads = ThreadPoolExecutor(MAX_THREADS, "kronos-api")
        self._probes = ThreadPoolExecutor(1, "kronos-api-probe")
        self.reading_datasets = asyncio.Semaphore(MAX_READINGS)
        self.uploads = Counter[str]()
        self._pool: asyncio.Future[Pool] | None = None
        self._pool_read_at = float("-inf")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.core.close()
        for threads in (self._threads, self._probes):
            threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.dispatcher.close)
        await asyncio.to_thread(self.feeds.close)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function on one of the threads.

        Raises JobError BROKER_UNREACHABLE if no thread is free in time, because Redis does not answer them.
        """
        call = self._threads.submit(copy_context().run, partial(function, *args, **kwargs))
        result = asyncio.wrap_future(call)
        try:
            await asyncio.wait((result,), timeout=THREAD_TIMEOUT_S)
            if not result.done() and call.cancel():
                raise unanswered()
            return await result
        finally:
            result.cancel()  # if the request is gone, its call leaves the pool's queue

    async def ask(self, function: Callable[..., T], *args: Any, job_id: str | None = None) -> T:
        """As ``call``, for a function that asks Redis, whose errors become JobError BROKER_UNREACHABLE."""

        def ask() -> T:
            with reachable(job_id):
                return function(*args)

        return await self.call(ask)

    async def read(self, job_id: str) -> Stored:
        """The stored state of a job.

        Raises:
            JobError: LOST if there is no such job, RESULT_EXPIRED if it is not kept, BROKER_UNREACHABLE.
        """
        async with _answered(JOB_TIMEOUT_S, job_id):
            stored = await self.events.read(job_id)
        stored.raise_absence()
        return stored

    async def try_to_cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs until Redis fails. A job that has ended stays as it is."""

        def cancel_all() -> None:
            for job_id in job_ids:
                self.dispatcher.cancel(job_id)

        with suppress(JobError):  # the request has an error of its own
            await self.call(cancel_all)

    async def cancel(self, job_id: str) -> Stored:
        """Cancel a job, and return its state after that. Raises the errors of ``read``."""
        await self.read(job_id)
        async with _answered(JOB_TIMEOUT_S, job_id):
            await self.call(self.dispatcher.cancel, job_id)
        return await self.read(job_id)

    async def forget(self, job_id: str) -> bool:
        """Delete the result of a job; returns whether there was one. Raises JobError BROKER_UNREACHABLE."""
        async with _answered(JOB_TIMEOUT_S, job_id):
            return await self.events.forget(job_id)

    async def facts(self, job_id: str, *, reads_dead: bool = False) -> JobFacts:
        """Where a job is, and how long it takes. Raises JobError BROKER_UNREACHABLE."""
        async with _answered(JOB_TIMEOUT_S, job_id):
            read = partial(read_job, reads_dead=reads_dead)
            return await self.ask(read, self.dispatcher.redis, job_id, job_id=job_id)

    async def dead(self) -> list[dict[str, Any]]:
        """The messages that no worker could read, newest first. Raises JobError BROKER_UNREACHABLE."""
        async with _answered(JOB_TIMEOUT_S):
            return await self.ask(dead_messages, self.dispatcher.redis)

    async def list_jobs(
        self, kind: Kind, limit: int, until: float | None
    ) -> tuple[Sequence[ListedJob], float | None]:
        """A page of jobs, as of ``job_facts.list_jobs``. Raises JobError BROKER_UNREACHABLE."""
        async with _answered(JOB_TIMEOUT_S):
            return await self.ask(list_jobs, self.dispatcher.redis, kind, limit, until)

    async def pool(self) -> Pool:
        """The workers and queues, read at most once a second for all requests.

        Raises JobError BROKER_UNREACHABLE.
        """
        if self._pool is None or (self._pool.done() and time.monotonic() - self._pool_read_at > POOL_CACHE_S):
            self._pool = asyncio.wrap_future(self._probes.submit(self._read_pool))
            # If all requests are gone when reading fails, asyncio would log the unread exception.
            self._pool.add_done_callback(lambda pool: pool.cancelled() or pool.exception())
        async with _answered(POOL_TIMEOUT_S):
            return await asyncio.shield(self._pool)

    def _read_pool(self) -> Pool:
        try:
            with reachable():
                redis, queues = self.dispatcher.redis, self.settings.queue_names.all
                num_shared = int(redis.get(SHARED_KEY) or 0)
                states = queue_states(redis, self.settings.max_queue_jobs, queues)
                return Pool(live_workers(redis), states, num_shared, int(redis.llen(DEAD_KEY)))
        finally:
            self._pool_read_at = time.monotonic()


@asynccontextmanager
async def _answered(timeout_s: float, job_id: str | None = None) -> AsyncIterator[None]:
    """Raises JobError BROKER_UNREACHABLE if the block takes too long."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise unanswered(job_id) from None


# async, because FastAPI runs sync dependencies on threads.
async def _backend(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


BackendDependency = Annotated[Backend, Depends(_backend)]
