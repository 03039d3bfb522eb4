"""What requests ask of Redis and Celery: blocking calls on a few threads, waiting on none."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, ParamSpec, Self, TypeVar

from fastapi import Depends, Request

from api_stub.problems import HttpCode, HttpError
from api_stub.settings import ApiSettings
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import Priority
from kronos_client.contract.worker_status import AnyWorkerStatus
from kronos_client.core.async_handle import AsyncHandle, submitted
from kronos_client.core.core import redis_core
from kronos_client.core.dispatcher import RedisDispatcher
from kronos_client.core.job import Job
from kronos_client.core.reachable import reachable, unanswered
from kronos_client.core.stored import NOTHING, Stored
from kronos_client.redis.queues import queue_lengths
from kronos_client.redis.routing import live_workers

MAX_THREADS: Final = 16
"""That enqueue and read. More would only wait for Python's one lock, or for a Redis that is away."""
MAX_CONNECTIONS: Final = 8
"""To wait by; one of them receives the states of all jobs."""
MAX_UPLOADS: Final = 4
MAX_READINGS: Final = 1
"""Of uploaded files at once: each may take ``dataset_process.MAX_MEMORY_BYTES``."""
POOL_KNOWN_FOR_S: Final = 1.0
PROBE_S: Final = 4.0
"""That Redis has to tell of workers and queues: less than the 5 s that probes are usually given."""
LOOK_S: Final = 10.0
"""That Redis has to tell of a job, or to take the wish to cancel it."""
BEGIN_S: Final = 10.0
"""That a call waits for one of the threads."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Pool:
    """The workers that are alive, and how many jobs wait in each queue with each priority."""

    workers: list[AnyWorkerStatus]
    lengths: Mapping[str, Mapping[Priority, int]]


class Backend:
    """The client, and what waits for its jobs. Lives on one event loop, as a context."""

    def __init__(self, settings: ApiSettings) -> None:
        self.settings = settings
        self.started = time.monotonic()
        self.dispatcher = RedisDispatcher(settings)
        self.core = redis_core(
            settings, self.dispatcher, max_connections=MAX_CONNECTIONS, call=self.call, away_for_s=LOOK_S
        )
        # A call that its request gave up goes on until Redis's time is over: a pool bounds their number.
        self._threads = ThreadPoolExecutor(MAX_THREADS, "kronos-api")
        self._probes = ThreadPoolExecutor(1, "kronos-api-probe")
        self.reading_datasets = asyncio.Semaphore(MAX_READINGS)
        self._uploads = asyncio.Semaphore(MAX_UPLOADS)
        self._pool: asyncio.Task[Pool] | None = None
        self._pool_read_at = float("-inf")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.core.close()
        if self._pool is not None:
            self._pool.cancel()
        for threads in (self._threads, self._probes):
            threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.dispatcher.close)

    def release(self) -> None:
        """End all waiting for jobs: this process ends, and the jobs go on."""
        self.core.events.release()

    @property
    def is_released(self) -> bool:
        """Whether all waiting has ended."""
        return self.core.events.is_released

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a blocking function gives, on one of the few threads.

        Raises JobError BROKER_UNREACHABLE where no thread is free in time: Redis does not answer them.
        """
        begun = self._threads.submit(partial(function, *args, **kwargs))
        given = asyncio.wrap_future(begun)
        try:
            await asyncio.wait((given,), timeout=BEGIN_S)
            if not given.done() and begun.cancel():
                raise unanswered()
            return await given
        finally:
            given.cancel()  # whoever is gone leaves nobody in the pool's queue

    async def submit(
        self,
        make_job: Callable[[dict[str, Any], str, ApiSettings], Job],
        payload: dict[str, Any],
        job_id: str,
    ) -> AsyncHandle[Any, Any]:
        """Check a job, and send it. Raises JobError."""
        return await submitted(
            self.core, partial(make_job, payload, job_id, self.settings), 0.0, may_stay=True
        )

    async def read(self, job_id: str) -> Stored:
        """What is stored of a job now.

        Raises:
            JobError: LOST, RESULT_EXPIRED if there is no such job, or no longer; BROKER_UNREACHABLE.
        """
        async with _answered(LOOK_S, job_id):
            stored = await self.core.events.read(job_id)
        stored.raise_absence()
        return stored

    async def wait(self, job_id: str, timeout_s: float) -> Stored:
        """What is stored of a job once it has ended, after the time, or once all waiting is ended.

        Raises as ``read``.
        """
        last = NOTHING
        try:
            async with aclosing(self.core.events.states(job_id, timeout_s)) as states:
                async for stored in states:
                    last = stored
        except JobError as error:
            if error.code != ErrorCode.TIMEOUT:
                raise
        return last

    async def cancel(self, job_id: str) -> Stored:
        """Ask for a job to end, and read how it stands then. Raises as ``read``."""
        await self.read(job_id)
        async with _answered(LOOK_S, job_id):
            await self.call(self.dispatcher.cancel, job_id)
        return await self.read(job_id)

    @asynccontextmanager
    async def uploading(self) -> AsyncIterator[None]:
        """Room for one more upload; raises HttpError OVERLOADED where there is none."""
        if self._uploads.locked():
            raise HttpError(HttpCode.OVERLOADED, "other files are being uploaded; send this one again soon")
        async with self._uploads:
            yield

    @property
    def num_waiting(self) -> int:
        """Jobs that requests wait for now."""
        return self.core.events.num_jobs

    async def pool(self) -> Pool:
        """The workers and queues, read at most once a second, however many ask.

        Raises JobError BROKER_UNREACHABLE.
        """
        now = time.monotonic()
        if self._pool is None or (self._pool.done() and now - self._pool_read_at > POOL_KNOWN_FOR_S):
            self._pool = asyncio.create_task(self._read_pool())
            self._pool.add_done_callback(_seen)
        reading = self._pool
        async with _answered(PROBE_S):
            return await asyncio.shield(reading)

    async def _read_pool(self) -> Pool:
        def read() -> Pool:
            with reachable():
                return Pool(live_workers(self.dispatcher.redis), queue_lengths(self.dispatcher.redis))

        try:
            return await asyncio.wrap_future(self._probes.submit(read))
        finally:
            self._pool_read_at = time.monotonic()


@asynccontextmanager
async def _answered(timeout_s: float, job_id: str | None = None) -> AsyncIterator[None]:
    """Raises JobError BROKER_UNREACHABLE where the block has not ended in time."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise unanswered(job_id) from None


def _seen(reading: "asyncio.Task[Pool]") -> None:
    """Whoever asked may be gone when it fails; asyncio would say that nobody heard of it."""
    if not reading.cancelled():
        reading.exception()


# async, since FastAPI runs other dependencies on threads of its own.
async def _backend(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


BackendDependency = Annotated[Backend, Depends(_backend)]
