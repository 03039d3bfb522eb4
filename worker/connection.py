"""Connections to Redis for what Celery does not carry: announcements, job records, cancellation."""

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError, TimeoutError
from redis.retry import Retry

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 10.0


def connect(url: str) -> Redis:
    """A pooled client that answers in strings, gives up in bounded time, and survives a restart of Redis."""
    return Redis.from_url(
        url,
        decode_responses=True,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=ANSWER_TIMEOUT_S,
        socket_keepalive=True,
        health_check_interval=25,
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), 3),
        retry_on_error=[ConnectionError, TimeoutError],
    )
