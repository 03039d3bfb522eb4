"""Invalidation messages of a real Redis, read by kombu's event loop."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from kombu.asynchronous import Hub
from redis import Redis

from tests.waiting import WAIT_S
from worker.broker import queue_watch
from worker.broker.queue_watch import QueueWatch


class Loop:
    """An event loop that reads a watch, and counts its notifications."""

    def __init__(self, url: str, *keys: str) -> None:
        self.count = 0
        self.hub = Hub()
        self.watch = QueueWatch(url, keys, self._notify)
        self.watch.attach(self.hub)
        self._loop = self.hub.create_loop()
        self.take = self.watch.client

    def _notify(self) -> None:
        self.count += 1

    def run_until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "it was not notified"
            next(self._loop)

    def wait(self) -> None:
        """Run until the next notification."""
        count = self.count
        self.run_until(lambda: self.count > count)


@pytest.fixture
def loop(redis: Redis, redis_server, monkeypatch) -> Loop:
    monkeypatch.setattr(queue_watch, "AGAIN_S", 3 * WAIT_S)
    loop = Loop(redis_server.url, "cpu", "cpu\x06\x163", "gpu")
    loop.take()
    assert loop.count == 1  # for what was sent before the subscription
    return loop


def test_it_notifies_of_each_change_of_a_list_and_of_no_other_key(redis, loop):
    for key in ("cpu", "cpu\x06\x163", "gpu"):
        redis.lpush(key, "x")
        loop.wait()
    redis.rpop("cpu")
    loop.wait()
    count = loop.count
    redis.set("cpu_usage", 1)
    redis.set("other", 1)
    redis.lpush("gpu", "x")
    loop.wait()
    assert loop.count == count + 1
    redis.flushall()
    loop.wait()


def test_the_next_take_connects_again_after_the_connection_is_lost(redis, loop):
    redis.client_kill_filter(_type="normal", skipme=True)
    loop.wait()  # for the loss
    loop.take().ping()
    redis.lpush("cpu", "x")
    loop.wait()


def test_a_connection_that_is_lost_in_a_take_is_read_again(redis, loop):
    for _ in range(3):
        redis.client_kill_filter(_type="normal", skipme=True)
        loop.take().ping()
        redis.lpush("cpu", "x")
        loop.wait()


def test_another_event_loop_of_celery_reads_it_on(redis, loop):
    loop.watch.attach(None)
    loop.hub.reset()
    redis.lpush("cpu", "x")
    loop.watch.attach(loop.hub)
    loop.wait()


def test_a_take_that_empties_a_list_notifies_of_nothing_but_later_changes(redis, loop):
    redis.lpush("cpu", "x")
    loop.wait()
    count = loop.count
    loop.take().rpop("cpu")
    loop.watch.took(b"cpu")
    redis.lpush("cpu\x06\x163", "x")
    loop.wait()
    assert loop.count == count + 1
    redis.lpush("cpu", "x")
    loop.wait()


def test_a_take_that_leaves_messages_notifies(redis, loop):
    redis.lpush("cpu", "x", "y")
    loop.wait()
    count = loop.count
    loop.take().rpop("cpu")
    loop.watch.took(b"")
    loop.run_until(lambda: loop.count > count)


def test_after_a_take_that_empties_a_list_it_notifies_once_more(redis, loop, monkeypatch):
    """A sender may have written in the same moment, which Redis does not say."""
    monkeypatch.setattr(queue_watch, "AGAIN_S", 0)
    redis.lpush("cpu", "x")
    loop.wait()
    both = loop.take().pipeline()  # one transaction: one invalidation message
    both.rpop("cpu").lpush("cpu", "y").execute()
    loop.watch.took(b"cpu")
    loop.wait()


def test_the_later_look_is_arranged_in_a_turn_of_the_loop_of_its_own(redis, loop, monkeypatch):
    """Within a turn, kombu already knows how long it will wait after it."""
    calls: list = []
    monkeypatch.setattr(queue_watch, "call_soon", lambda hub, call: calls.append(call))
    redis.lpush("cpu", "x")
    loop.wait()
    loop.take().rpop("cpu")
    loop.watch.took(b"cpu")
    loop.run_until(lambda: calls)
    assert not loop.hub.timer._queue
    calls[0]()
    assert loop.hub.timer._queue


def test_unless_another_take_came_meanwhile(redis, loop, monkeypatch):
    monkeypatch.setattr(queue_watch, "AGAIN_S", 0.2)
    redis.lpush("cpu", "x")
    loop.wait()
    count = loop.count
    loop.take().rpop("cpu")
    loop.watch.took(b"cpu")
    loop.run_until(lambda: loop.hub.timer._queue)
    loop.watch.took(b"")
    loop.run_until(lambda: not loop.hub.timer._queue)
    assert loop.count == count


def test_it_polls_if_redis_sends_no_invalidation_messages(redis, redis_server, caplog):
    redis.acl_setuser(
        "deaf", enabled=True, passwords=["+pw"], categories=["+@all"], commands=["-client"], keys=["*"]
    )
    loop = Loop(f"redis://deaf:pw@{redis_server.url.rpartition('@')[2].removeprefix('redis://')}", "cpu")
    loop.take()
    for _ in range(3):
        loop.wait()
    redis.client_kill_filter(user="deaf")
    loop.wait()
    loop.take().ping()
    loop.watch.attach(None)
    loop.watch.attach(loop.hub)
    for _ in range(3):
        loop.wait()
    assert sum("sends no invalidation messages" in record.message for record in caplog.records) == 1
