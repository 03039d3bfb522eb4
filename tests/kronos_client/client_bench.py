"""Each of the four clients, real or fake, awaited or not, with somebody behind it who ends its jobs."""

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from redis import Redis

from kronos_client.aio import AsyncForecastClient
from kronos_client.celery_app import make_app
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import JobError
from kronos_client.contract.names import GPU_QUEUE, PROGRESS_STATE, job_key
from kronos_client.contract.results import ForecastResult
from kronos_client.contract.schemas import example
from kronos_client.core.handle import AsyncHandle
from kronos_client.redis.routing import announce
from kronos_client.settings import ClientSettings
from kronos_client.testing import FakeAsyncForecastClient, FakeForecastClient, fake_worker
from tests.result_backends import with_result_backend

RESULT = ForecastResult.model_validate(example("forecast-result"))

KINDS: Final = ("real", "fake", "awaited real", "awaited fake")


class WeakCandles(dict[str, Any]):
    """Candles that can be referred to weakly."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Awaited:
    """An object for asyncio, used without: each call runs the event loop until its end."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self._inner = inner
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._call(value) if callable(value) else value

    def _call(self, method: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            given = method(*arguments, **options)
            if inspect.isasyncgen(given):
                return self._iterate(given)
            return self._wrapped(self._runner.run(given) if inspect.iscoroutine(given) else given)

        return call

    def _wrapped(self, value: Any) -> Any:
        return Awaited(value, self._runner) if isinstance(value, AsyncHandle) else value

    def _iterate(self, generator: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(generator, self)

        async def close() -> None:
            await generator.aclose()

        try:
            while (value := self._runner.run(following())) is not self:
                yield value
        finally:
            self._runner.run(close())


class FakeBench:
    """A fake client, which is steered itself."""

    client: Any

    def __init__(self, settings: ClientSettings) -> None:
        self.fake = FakeForecastClient(settings=settings, hold=True)

    def make_client(self, *, is_awaited: bool) -> Any:
        return FakeAsyncForecastClient(self.fake) if is_awaited else self.fake

    def finish(self, job_id: str) -> None:
        self.fake.finish(job_id, RESULT)

    def fail(self, job_id: str, error: JobError) -> None:
        self.fake.fail(job_id, error)

    def set_progress(self, job_id: str, bars_done: int, bars_total: int) -> None:
        self.fake.set_progress(job_id, bars_done, bars_total)

    def lose(self) -> None:
        self.fake.lose()

    def lose_message(self, job_id: str) -> None:
        self.fake.lose(job_id)

    def start_gpu_worker(self) -> None:
        self.fake.live_workers.append(fake_worker(GPU_QUEUE))

    def waiting(self) -> list[str]:
        """Ids of the jobs that nobody ended yet, in the order in which they were enqueued."""
        return [
            job_id for job_id in self.fake.jobs if not self.fake.forecast_handle(job_id).state().has_ended
        ]


class WorkerSide:
    """Stores and publishes what workers would, by Celery's result backend."""

    def __init__(self, settings: ClientSettings) -> None:
        self.backend = with_result_backend(make_app(settings))

    def finish(self, job_id: str, result: Any = None) -> None:
        self.backend.mark_as_done(job_id, result or example("forecast-result"))

    def fail(self, job_id: str, error: JobError) -> None:
        self.backend.mark_as_failure(job_id, error)

    def set_progress(self, job_id: str, bars_done: int, bars_total: int) -> None:
        info = {"bars_done": bars_done, "bars_total": bars_total}
        self.backend.store_result(job_id, info, PROGRESS_STATE)


class RedisBench(WorkerSide):
    """A real client, and its workers' side."""

    client: Any

    def __init__(self, settings: ClientSettings, redis: Redis) -> None:
        super().__init__(settings)
        self._settings = settings
        self._redis = redis

    def make_client(self, *, is_awaited: bool) -> Any:
        return (AsyncForecastClient if is_awaited else ForecastClient)(settings=self._settings)

    def lose(self) -> None:
        self._redis.flushall()

    def lose_message(self, job_id: str) -> None:
        self._redis.hset(job_key(job_id), "at", "none")

    def start_gpu_worker(self) -> None:
        announce(self._redis, fake_worker(GPU_QUEUE))

    def waiting(self) -> list[str]:
        records = self._redis.keys("kronos:job:*")
        submitted = {key.removeprefix("kronos:job:"): self._redis.hgetall(key) for key in records}
        return [job_id for job_id, record in submitted.items() if "ended_at" not in record]


ClientBench = FakeBench | RedisBench
"""``client`` and its workers' side; jobs wait until they are ended here."""


@contextmanager
def client_bench(kind: str, settings: ClientSettings, redis: Redis) -> Iterator[ClientBench]:
    """A bench with one of the clients named by ``KINDS``."""
    bench: Any = FakeBench(settings) if kind.endswith("fake") else RedisBench(settings, redis)
    if kind.startswith("awaited"):
        with asyncio.Runner() as runner:
            bench.client = Awaited(bench.make_client(is_awaited=True), runner)
            yield bench
            bench.client.aclose()
    else:
        with bench.make_client(is_awaited=False) as bench.client:
            yield bench
