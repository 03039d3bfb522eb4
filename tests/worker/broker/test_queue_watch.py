"""Invalidation messages of a real Redis."""

import threading

import pytest

from kronos_client.redis.connection import connect
from tests.waiting import WAIT_S
from worker.broker import queue_watch
from worker.broker.queue_watch import QueueWatch


class Listener:
    """Counts, and lets a test wait for the next notification."""

    def __init__(self) -> None:
        self.count = 0
        self._notified = threading.Semaphore(0)

    def notify(self) -> None:
        self.count += 1
        self._notified.release()

    def wait(self) -> None:
        assert self._notified.acquire(timeout=WAIT_S), "it was not notified"


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def watch(redis_server, redis, listener) -> QueueWatch:
    watched = connect(redis_server.url, decode_responses=False, protocol=3)
    watch = QueueWatch(watched, ["cpu", "cpu\x06\x163", "gpu"], listener.notify)
    watch.start()
    listener.wait()  # for the start of the subscription
    return watch


def test_it_notifies_of_each_change_of_a_list_and_of_no_other_key(redis, watch, listener):
    for key in ("cpu", "cpu\x06\x163", "gpu"):
        redis.lpush(key, "x")
        listener.wait()
    redis.rpop("cpu")
    listener.wait()
    count = listener.count
    redis.set("cpu_usage", 1)
    redis.set("other", 1)
    redis.lpush("gpu", "x")
    listener.wait()
    assert listener.count == count + 1


def test_it_reconnects_after_its_connection_is_lost(redis, watch, listener, monkeypatch):
    monkeypatch.setattr(queue_watch, "RECONNECT_INTERVAL_S", 0.01)
    redis.client_kill_filter(_type="normal", skipme=True)
    listener.wait()  # for the loss
    listener.wait()  # for the new subscription
    redis.lpush("cpu", "x")
    listener.wait()


def test_a_silent_connection_is_not_lost(redis, redis_server, listener, monkeypatch):
    monkeypatch.setattr(queue_watch, "QUIET_S", 0.05)
    watched = connect(f"{redis_server.url}?client_name=watched", decode_responses=False, protocol=3)
    QueueWatch(watched, ["cpu"], listener.notify).start()
    listener.wait()

    def connections() -> set[str]:
        return {one["id"] for one in redis.client_list() if one["name"] == "watched"}

    before = connections()
    threading.Event().wait(0.5)
    assert listener.count == 1
    assert connections() == before
    redis.lpush("cpu", "x")
    listener.wait()


def test_it_polls_if_redis_sends_no_invalidation_messages(redis, redis_server, listener, monkeypatch, caplog):
    redis.acl_setuser(
        "deaf", enabled=True, passwords=["+pw"], categories=["+@all"], commands=["-client"], keys=["*"]
    )
    url = f"redis://deaf:pw@{redis_server.url.rpartition('@')[2].removeprefix('redis://')}"
    QueueWatch(connect(url, decode_responses=False, protocol=3), ["cpu"], listener.notify).start()
    for _ in range(5):
        listener.wait()
    assert sum("sends no invalidation messages" in record.message for record in caplog.records) == 1
