"""A real Redis for the tests of the worker's modules, empty at the start of each."""

from collections.abc import Iterator

import pytest
from redis import Redis

from worker.connection import connect
from worker.local import LocalRedis
from worker.settings import Settings


@pytest.fixture(scope="module")
def redis_server() -> Iterator[LocalRedis]:
    with LocalRedis() as server:
        yield server


@pytest.fixture
def redis(redis_server: LocalRedis) -> Iterator[Redis]:
    with connect(redis_server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def settings(redis: Redis, redis_server: LocalRedis) -> Settings:
    """The defaults, whatever the environment says, on the module's Redis."""
    return Settings.model_construct().with_redis_url(redis_server.url)
