"""The heartbeat against a real Redis and a real kombu consumer; fails when kombu's internals change."""

import inspect
import json
import time
from types import SimpleNamespace

import kombu
import pytest
from celery.worker import state
from celery.worker.request import Request
from kombu import Connection
from kombu.transport.redis import Channel
from redis import Redis

from worker import transport
from worker.celery_config import UNACKED_INDEX_KEYS, UNACKED_KEYS, celery_config
from worker.settings import Settings
from worker.transport import held_delivery_tags, renew

QUEUE = "cpu"


@pytest.fixture
def taken(settings: Settings):
    """A channel as a worker has it, and two messages that it took and has not acknowledged."""
    config = celery_config(settings)
    with Connection(config["broker_url"], transport_options=config["broker_transport_options"]) as connection:
        queue = connection.SimpleQueue(QUEUE)
        for number in (1, 2):
            queue.put({"number": number}, serializer="json")
        yield SimpleNamespace(channel=queue.channel, messages=[queue.get(timeout=5), queue.get(timeout=5)])
        queue.close()


def test_kombu_is_the_version_whose_internals_are_used():
    assert kombu.__version__.startswith("5.7."), "read kombu/transport/redis.py again, then change this"


def age(redis: Redis, tags: list[str]) -> None:
    redis.zadd(UNACKED_INDEX_KEYS["forecast"], dict.fromkeys(tags, 1.0), xx=True)


@pytest.fixture
def tags(taken) -> list[str]:
    return [message.delivery_tag for message in taken.messages]


def test_kombu_keeps_the_moments_where_they_are_renewed(redis: Redis, tags):
    assert set(redis.zrange(UNACKED_INDEX_KEYS["forecast"], 0, -1)) == set(tags)
    age(redis, tags)
    renew(redis, tags)
    assert all(score > time.time() - 5 for score in redis.zmscore(UNACKED_INDEX_KEYS["forecast"], tags))


def test_a_channel_keeps_one_client_for_its_commands_until_its_pool_is_another(taken, monkeypatch):
    monkeypatch.setattr(Channel, "conn_or_acquire", transport._conn_or_acquire)
    channel = taken.channel

    def client() -> Redis:
        with channel.conn_or_acquire() as client:
            assert client.ping()
            return client

    first = client()
    assert client() is first
    with channel.conn_or_acquire(other := Redis()) as given:
        assert given is other
    channel._disconnect_pools()
    assert client() is not first
    taken.messages[0].ack()


def test_an_acknowledged_message_is_not_brought_back(taken, redis: Redis, tags):
    taken.messages[0].ack()
    renew(redis, tags)
    assert redis.zrange(UNACKED_INDEX_KEYS["forecast"], 0, -1) == [tags[1]]


def test_only_what_is_not_renewed_is_delivered_again(taken, redis: Redis, tags):
    age(redis, tags)
    renew(redis, tags[:1])
    taken.channel.qos.restore_visible(interval=1)
    assert redis.zrange(UNACKED_INDEX_KEYS["forecast"], 0, -1) == tags[:1]
    assert redis.llen(QUEUE) == 1


@pytest.fixture
def outliving(settings, monkeypatch):
    """As a worker's process is set up, until the end of the test."""
    monkeypatch.setattr(Channel, "QoS", Channel.QoS)
    monkeypatch.setattr(Channel, "do_restore", Channel.do_restore)
    monkeypatch.setattr(transport, "get_settings", lambda: settings)
    transport._own_connection.cache_clear()
    transport.outlive_connections()
    yield
    transport._own_connection.cache_clear()


def test_a_closed_channel_keeps_its_messages_until_they_are_acknowledged(
    outliving, taken, redis: Redis, tags
):
    taken.channel.close()
    assert redis.llen(QUEUE) == 0
    assert set(redis.zrange(UNACKED_INDEX_KEYS["forecast"], 0, -1)) == set(tags)
    first, second = taken.messages
    first.ack()
    assert redis.zrange(UNACKED_INDEX_KEYS["forecast"], 0, -1) == [second.delivery_tag]
    assert redis.hkeys(UNACKED_KEYS["forecast"]) == [second.delivery_tag]
    # Sent by an exchange, whose queues would be looked up on the connection that is gone; kombu drops a
    # message that it finds none for.
    second.reject(requeue=True)
    assert redis.zrange(UNACKED_INDEX_KEYS["forecast"], 0, -1) == [second.delivery_tag]


def test_a_closed_channel_puts_back_at_once_what_was_sent_as_celery_does(
    outliving, taken, redis: Redis, tags
):
    message, _, queue = json.loads(redis.hget(UNACKED_KEYS["forecast"], tags[0]))
    redis.hset(UNACKED_KEYS["forecast"], tags[0], json.dumps([message, "", queue]))
    taken.channel.close()
    taken.messages[0].reject(requeue=True)
    assert redis.llen(QUEUE) == 1
    assert (
        redis.zrange(UNACKED_INDEX_KEYS["forecast"], 0, -1)
        == redis.hkeys(UNACKED_KEYS["forecast"])
        == tags[1:]
    )


def test_a_redis_that_is_full_does_not_leave_the_worker_deaf(outliving, taken, redis: Redis, tags):
    qos = taken.channel.qos
    held = len(qos._delivered) - len(qos._dirty)
    redis.config_set("maxmemory", 1)
    try:
        taken.messages[0].reject(requeue=True)
    finally:
        redis.config_set("maxmemory", 0)
    assert len(qos._delivered) - len(qos._dirty) == held - 1
    assert set(redis.zrange(UNACKED_INDEX_KEYS["forecast"], 0, -1)) == set(tags)


def test_an_open_channel_acknowledges_as_ever(outliving, taken, redis: Redis):
    for message in taken.messages:
        message.ack()
    assert redis.zcard(UNACKED_INDEX_KEYS["forecast"]) == redis.hlen(UNACKED_KEYS["forecast"]) == 0


class FakeRequest:
    """As much of a Celery request as the worker's state looks at."""

    name = "kronos.forecast"

    def __init__(self, tag: str) -> None:
        self.id = f"job-{tag}"
        self.message = SimpleNamespace(delivery_tag=tag)


def test_what_is_held_is_what_celery_has_reserved_or_runs():
    running, waiting = requests = [FakeRequest("a"), FakeRequest("b")]
    assert held_delivery_tags() == set()
    for request in requests:
        state.task_reserved(request)
    state.task_accepted(running)
    assert held_delivery_tags() == {"a", "b"}
    state.task_ready(running)
    assert held_delivery_tags() == {"b"}
    state.task_ready(waiting)
    assert held_delivery_tags() == set()


def test_celery_keeps_the_message_where_the_tag_is_read():
    assert isinstance(inspect.getattr_static(Request, "message"), property)
