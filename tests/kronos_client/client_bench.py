"""A client, real or fake, with somebody behind it who ends its jobs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import JobError
from kronos_client.contract.examples import example_result
from kronos_client.contract.names import GPU_QUEUE, PROGRESS_STATE
from kronos_client.contract.results import ForecastResult
from kronos_client.core.base import BaseClient
from kronos_client.redis.routing import announce
from kronos_client.settings import ClientSettings
from kronos_client.testing import FakeForecastClient, fake_worker

RESULT = ForecastResult.model_validate(example_result())


class ClientBench(ABC):
    """``client`` and its workers' side; jobs wait until they are ended here."""

    client: BaseClient

    @abstractmethod
    def finish(self, job_id: str) -> None: ...

    @abstractmethod
    def fail(self, job_id: str, error: JobError) -> None: ...

    @abstractmethod
    def tell(self, job_id: str, bars_done: int, bars_total: int) -> None: ...

    @abstractmethod
    def lose(self) -> None: ...

    @abstractmethod
    def start_gpu_worker(self) -> None: ...

    @abstractmethod
    def waiting(self) -> list[str]:
        """Ids of the jobs that nobody ended yet, in the order in which they were enqueued."""


class FakeBench(ClientBench):
    def __init__(self, settings: ClientSettings) -> None:
        self.client = self.fake = FakeForecastClient(settings=settings, hold=True)

    def finish(self, job_id: str) -> None:
        self.fake.finish(job_id, RESULT)

    def fail(self, job_id: str, error: JobError) -> None:
        self.fake.fail(job_id, error)

    def tell(self, job_id: str, bars_done: int, bars_total: int) -> None:
        self.fake.tell(job_id, bars_done, bars_total)

    def lose(self) -> None:
        self.fake.lose()

    def start_gpu_worker(self) -> None:
        self.fake.live_workers.append(fake_worker(GPU_QUEUE))

    def waiting(self) -> list[str]:
        return [
            job_id for job_id in self.fake.jobs if not self.fake.forecast_handle(job_id).state().has_ended
        ]


class RedisBench(ClientBench):
    def __init__(self, settings: ClientSettings, redis: Redis) -> None:
        self.client = self.real = ForecastClient(settings=settings)
        self._redis = redis

    def finish(self, job_id: str) -> None:
        self.real._app.backend.mark_as_done(job_id, RESULT.model_dump(mode="json"))

    def fail(self, job_id: str, error: JobError) -> None:
        self.real._app.backend.mark_as_failure(job_id, error)

    def tell(self, job_id: str, bars_done: int, bars_total: int) -> None:
        info = {"bars_done": bars_done, "bars_total": bars_total}
        self.real._app.backend.store_result(job_id, info, PROGRESS_STATE)

    def lose(self) -> None:
        self._redis.flushall()

    def start_gpu_worker(self) -> None:
        announce(self._redis, fake_worker(GPU_QUEUE))

    def waiting(self) -> list[str]:
        records = self._redis.keys("kronos:job:*")
        submitted = {key.removeprefix("kronos:job:"): self._redis.hgetall(key) for key in records}
        return [job_id for job_id, record in submitted.items() if "ended_at" not in record]


@contextmanager
def client_bench(kind: str, settings: ClientSettings, redis: Redis) -> Iterator[ClientBench]:
    bench = FakeBench(settings) if kind == "fake" else RedisBench(settings, redis)
    with bench.client:
        yield bench
