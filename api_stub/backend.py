"""What requests ask of Redis and Celery: blocking calls on a few threads, waiting on none."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, ParamSpec, Self, TypeVar

from fastapi import Depends, Request

from api_stub.problems import HttpCode, HttpError
from api_stub.settings import ApiSettings
from api_stub.watching import Followed, Meta, ResultWatch
from kronos_client.celery_app import make_app
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import Priority
from kronos_client.contract.worker_status import AnyWorkerStatus
from kronos_client.core.async_channel import connect_async
from kronos_client.core.handle import JobHandle
from kronos_client.core.result_store import reachable
from kronos_client.redis.connection import connect
from kronos_client.redis.queues import queue_lengths
from kronos_client.redis.routing import live_workers

MAX_THREADS: Final = 16
"""That enqueue and read. More would only wait for Python's one lock, or for a Redis that is away."""
MAX_CONNECTIONS: Final = 8
"""Of those who wait, one of which listens for all of them."""
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
        url = settings.redis_url.get_secret_value()
        self.client = ForecastClient(settings=settings)
        self.celery = make_app(settings)
        self._redis = connect(url)
        # What is given up goes on in its thread until Redis's time is over: only a pool bounds their number.
        self._threads = ThreadPoolExecutor(MAX_THREADS, "kronos-api")
        self._probes = ThreadPoolExecutor(1, "kronos-api-probe")
        self.reading_datasets = asyncio.Semaphore(MAX_READINGS)
        self._uploads = asyncio.Semaphore(MAX_UPLOADS)
        self._watch = ResultWatch(connect_async(url, MAX_CONNECTIONS))
        self._pool: asyncio.Task[Pool] | None = None
        self._pool_read_at = float("-inf")

    async def __aenter__(self) -> Self:
        await self._watch.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._watch.stop()
        if self._pool is not None:
            self._pool.cancel()
        for threads in (self._threads, self._probes):
            threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.client.close)
        self.celery.close()
        self._redis.close()

    def release(self) -> None:
        """Have nobody wait for a job any longer: this process ends, and the jobs go on."""
        self._watch.release()

    @property
    def is_released(self) -> bool:
        """Whether nobody is to wait any longer."""
        return self._watch.is_released

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

    @asynccontextmanager
    async def follow(self, handle: JobHandle[Any, Any]) -> AsyncIterator[Followed]:
        """A job's states while the block lasts.

        Raises JobError: LOST, RESULT_EXPIRED where there is nothing to wait for.
        """
        async with self._watch.follow(handle.id) as followed:
            if followed.meta is None:
                await self.call(self.check, handle)
            yield followed

    def check(self, handle: JobHandle[Any, Any]) -> None:
        """As ``handle.check``, and BROKER_UNREACHABLE; blocks."""
        with reachable(handle.id):
            handle.check()

    async def wait(self, handle: JobHandle[Any, Any], timeout_s: float) -> Followed:
        """A job once it has ended, or as it is after the time, or once nobody is to wait.

        Raises as ``follow``.
        """
        deadline = time.monotonic() + timeout_s
        async with _answered(timeout_s + LOOK_S, handle.id), self.follow(handle) as followed:
            while not followed.has_ended and not followed.is_released:
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0 or not await followed.change(remaining_s):
                    break
                if followed.is_missing:
                    await self.call(self.check, handle)
            return followed

    async def cancel(self, handle: JobHandle[Any, Any]) -> Followed:
        """Ask for a job to end, and see how it stands then. Raises as ``follow``."""
        async with _answered(LOOK_S, handle.id):
            await self.call(self.check, handle)
            await self.call(handle.cancel)
            return await self.wait(handle, 0)

    async def states(self, handle: JobHandle[Any, Any]) -> AsyncIterator[tuple[Meta | None, bool]]:
        """A job's states as they come, each with whether the job has ended with it, while anybody is to wait.

        Raises as ``follow``.
        """
        async with self.follow(handle) as followed:
            while True:
                yield followed.meta, followed.has_ended
                if followed.has_ended:
                    return
                await followed.change(math.inf)
                if followed.is_released and not followed.has_ended:
                    return
                if followed.is_missing:
                    await self.call(self.check, handle)

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
        return self._watch.num_followed

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
                return Pool(live_workers(self._redis), queue_lengths(self._redis))

        try:
            return await asyncio.wrap_future(self._probes.submit(read))
        finally:
            self._pool_read_at = time.monotonic()


def unanswered(job_id: str | None = None) -> JobError:
    """What is told where Redis has not answered in time."""
    return JobError(
        ErrorCode.BROKER_UNREACHABLE,
        "Redis does not answer in time; is it running, and is the URL right?",
        None,
        {} if job_id is None else {"job_id": job_id},
    )


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
