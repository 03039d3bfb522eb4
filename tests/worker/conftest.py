"""A real Redis for the tests of the worker's modules, empty at the start of each."""

import pytest
from redis import Redis

from worker.local import LocalRedis
from worker.settings import Settings


@pytest.fixture
def settings(redis: Redis, redis_server: LocalRedis) -> Settings:
    """The defaults, whatever the environment says, on the module's Redis."""
    return Settings.model_construct().with_redis_url(redis_server.url)
