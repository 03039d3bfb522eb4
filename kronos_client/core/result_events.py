"""Endings: hears over one connection that something is new of any of several jobs, their ends among it."""

import time
from contextlib import suppress
from typing import Protocol

from celery.backends.base import KeyValueStoreBackend
from redis import Redis
from redis.exceptions import RedisError


class Endings(Protocol):
    """Whoever waits for several jobs at once asks here which to look at."""

    def add(self, job_id: str) -> None:
        """Listen for this job from now on."""

    def remove(self, job_id: str) -> None:
        """No longer."""

    def wait(self, timeout_s: float) -> set[str]:
        """Jobs of which something is new, as soon as there are any; none where nothing is in this time."""

    def close(self) -> None:
        """Listen no more."""


def result_key(job_id: str) -> str:
    """Where Celery stores a job's state, and the channel on which it tells of it."""
    return f"{KeyValueStoreBackend.task_keyprefix}{job_id}"


def job_id_of(channel: str) -> str:
    """The job that a channel tells of."""
    return channel.removeprefix(KeyValueStoreBackend.task_keyprefix)


class RedisEndings:
    """By pub/sub. What is told while the connection is lost is missed: who waits looks now and then too."""

    def __init__(self, redis: Redis) -> None:
        self._pubsub = redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]

    def add(self, job_id: str) -> None:
        with suppress(RedisError):  # who waits looks all the same
            self._pubsub.subscribe(result_key(job_id))

    def remove(self, job_id: str) -> None:
        with suppress(RedisError):
            self._pubsub.unsubscribe(result_key(job_id))

    def wait(self, timeout_s: float) -> set[str]:
        told: set[str] = set()
        ends_at = time.monotonic() + timeout_s
        while True:
            remaining_s = ends_at - time.monotonic()
            if not self._pubsub.subscribed:  # there is nothing to listen for, only time to pass
                time.sleep(max(0.0, remaining_s))
                return told
            try:
                message = self._pubsub.get_message(timeout=0.0 if told else max(0.0, remaining_s))
            except RedisError:  # it connects again, and subscribes again, by itself
                time.sleep(min(1.0, max(0.0, remaining_s)))
                message = None
            if message is not None:
                told.add(job_id_of(message["channel"]))
            elif told or time.monotonic() >= ends_at:
                return told

    def close(self) -> None:
        self._pubsub.close()
