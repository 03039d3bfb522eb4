"""A real Redis for the tests of the worker's modules, empty at the start of each."""

import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from worker.settings import WorkerSettings


@pytest.fixture
def settings(redis: Redis, redis_server: LocalRedis) -> WorkerSettings:
    """The defaults, whatever the environment says, on the module's Redis."""
    return WorkerSettings.model_construct().with_redis_url(redis_server.url)
