"""A real Redis for the tests of the client's modules, empty at the start of each."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.celery_app import make_app
from kronos_client.client import ForecastClient
from kronos_client.settings import ClientSettings
from tests.kronos_client.client_bench import KINDS, ClientBench, client_bench
from tests.result_backends import with_result_backend


@pytest.fixture
def settings(redis: Redis, redis_server: LocalRedis) -> ClientSettings:
    """The defaults, whatever the environment says, on the module's Redis."""
    return ClientSettings.model_construct().with_redis_url(redis_server.url)


@pytest.fixture
def backend(settings: ClientSettings) -> Any:
    """Celery's result backend, with which a worker stores and publishes states."""
    return with_result_backend(make_app(settings))


@pytest.fixture
def client(settings: ClientSettings) -> Iterator[ForecastClient]:
    """A client on the module's Redis."""
    with ForecastClient(settings=settings) as client:
        yield client


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, settings: ClientSettings, redis: Redis) -> Iterator[ClientBench]:
    """Each of the four clients, with its workers' side."""
    with client_bench(request.param, settings, redis) as bench:
        yield bench
