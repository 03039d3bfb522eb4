"""Commands with settings that each test reads anew, and a Redis that they find."""

from collections.abc import Iterator

import pytest
from redis import Redis

from kronos_cli.settings import get_settings
from kronos_cli.stack.local_redis import LocalRedis


@pytest.fixture(autouse=True)
def _fresh_settings() -> Iterator[None]:
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()


@pytest.fixture
def redis(redis: Redis, redis_server: LocalRedis, monkeypatch: pytest.MonkeyPatch) -> Redis:
    """A connection to the empty Redis at KRONOS_REDIS_URL."""
    monkeypatch.setenv("KRONOS_REDIS_URL", redis_server.url)
    return redis
