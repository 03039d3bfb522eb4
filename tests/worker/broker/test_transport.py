"""The worker's broker transport on a real Redis; fails when kombu's internals change."""

import json
import threading
from types import SimpleNamespace
from typing import NoReturn

import kombu
import pytest
from celery import Celery, states
from celery.app.task import Context
from celery.worker import state
from kombu import Consumer, Queue
from kombu.transport import redis as kombu_redis
from redis import BlockingConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from kronos_client.celery_app import make_app
from kronos_client.contract.names import DEAD_KEY, FORECAST_TASK, STATUS_TASK
from kronos_client.redis.queues import DELIVERY_KEYS
from tests.result_backends import with_result_backend
from tests.waiting import WAIT_S
from tests.worker.broker.test_messages import message
from worker.broker import steps, transport
from worker.broker.claims import Claims
from worker.broker.transport import held_deliveries

QUEUE = "cpu"
KEYS = DELIVERY_KEYS["forecast"]
UNACKED, INDEX = KEYS.unacked, KEYS.renewed


@pytest.fixture
def app(settings, monkeypatch):
    """A worker's app, as the process is set up for it until the end of the test."""
    app = make_app(settings)
    with_result_backend(app, KEYS)
    app.conf.broker_transport = transport.TRANSPORT
    for module in (transport, steps):
        monkeypatch.setattr(module, "get_settings", lambda: settings)
    monkeypatch.setattr(transport, "app", app)
    transport.message_consumer.cache_clear()
    yield app
    transport.message_consumer.cache_clear()


class Receiver:
    """A kombu consumer and its messages."""

    def __init__(self, app) -> None:
        self.connection = app.connection_for_read()
        self.channel = self.connection.channel()
        self.messages: list = []
        consumer = Consumer(self.channel, [Queue(QUEUE)], on_message=self.messages.append, accept=["json"])
        consumer.consume()

    def receive(self) -> list:
        """The messages since the last call; takes from Redis once."""
        self.messages.clear()
        transport.message_consumer().notify()
        self.connection.transport.cycle.on_poll_start()
        return list(self.messages)


@pytest.fixture
def receiver(app):
    receiver = Receiver(app)
    yield receiver
    receiver.connection.release()


def send(redis: Redis, *job_ids: str) -> None:
    for job_id in job_ids:
        redis.lpush(QUEUE, json.dumps(message(headers={"id": job_id})))


def holds_nothing(receiver: Receiver) -> bool:
    receiver.channel.basic_qos(0, 1, False)
    return bool(receiver.channel.qos.can_consume())


def test_messages_have_celerys_form_and_are_noted(redis, receiver):
    send(redis, "a", "b")
    first, second = receiver.receive()
    assert [one.headers["id"] for one in (first, second)] == ["a", "b"]
    assert first.payload == first.decode() == message_body()
    assert first.delivery_info == {"exchange": "", "routing_key": QUEUE}
    assert first.properties["priority"] == 0
    assert first.properties["num_bytes"] == len(json.dumps(message(headers={"id": "a"})))
    assert (
        set(redis.hkeys(UNACKED))
        == set(redis.zrange(INDEX, 0, -1))
        == {first.delivery_tag, second.delivery_tag}
    )


def message_body() -> list:
    return [[], {"job": {"pred_len": 3}}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]


def test_a_channel_takes_no_more_than_it_has_room_for(redis, receiver):
    receiver.channel.basic_qos(0, 2, False)
    send(redis, "a", "b", "c")
    first, _ = receiver.receive()
    assert receiver.receive() == []
    first.ack()
    assert [one.headers["id"] for one in receiver.receive()] == ["c"]


@pytest.mark.parametrize("task", [FORECAST_TASK, STATUS_TASK])
def test_only_the_stored_outcome_removes_a_message(redis, receiver, task):
    """Celery acknowledges also what it failed to store."""
    redis.lpush(QUEUE, json.dumps(message(headers={"id": "a", "task": task})))
    (one,) = receiver.receive()
    one.ack()
    assert holds_nothing(receiver)
    receiver.channel.qos._flush()  # as when the next message comes: the channel forgets this one
    receiver.channel.qos.ack(one.delivery_tag)
    assert redis.hkeys(UNACKED) == redis.zrange(INDEX, 0, -1) == [one.delivery_tag]
    context = Context({"id": "a"}, properties=one.properties)
    transport.backend().store_result("a", {}, states.SUCCESS, request=context)
    assert not redis.exists(*KEYS, QUEUE)


def test_a_full_redis_gives_the_next_job_as_soon_as_one_has_ended(redis, receiver):
    send(redis, "a", "b")
    receiver.channel.basic_qos(0, 5, False)
    try:
        redis.config_set("maxmemory", 1)
        (first,) = receiver.receive()
        first.ack()
        receiver.connection.transport.cycle.on_poll_start()  # no other notification
        assert len(receiver.messages) == 2
    finally:
        redis.config_set("maxmemory", 0)


@pytest.mark.parametrize("end", ["requeue", "reject"])
def test_a_closed_channels_messages_stay_until_they_are_ended(redis, receiver, end):
    send(redis, "a", "b")
    first, second = receiver.receive()
    receiver.channel.close()
    assert set(redis.hkeys(UNACKED)) == {first.delivery_tag, second.delivery_tag}
    first.reject(requeue=end == "requeue")
    assert redis.hkeys(UNACKED) == [second.delivery_tag]
    assert redis.llen(QUEUE) == (end == "requeue")


def test_a_channel_forgets_a_message_even_if_redis_is_away(redis, receiver, monkeypatch):
    def away(*_: object, **__: object) -> NoReturn:
        raise RedisConnectionError("away")

    send(redis, "a")
    (one,) = receiver.receive()
    with monkeypatch.context() as patch:
        patch.setattr(BlockingConnectionPool, "get_connection", away)
        one.reject(requeue=True)
    assert holds_nothing(receiver)
    assert redis.hkeys(UNACKED) == [one.delivery_tag]  # it is delivered again when its claim ends


def test_a_worker_renews_its_messages_and_puts_back_abandoned_ones(redis, receiver, monkeypatch):
    send(redis, "held", "lost")
    held, lost = receiver.receive()
    for one in (held, lost):
        redis.zincrby(INDEX, -1000, one.delivery_tag)
    request = FakeRequest(held.delivery_tag)
    state.task_reserved(request)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    step = steps.ClaimRenewal(None)
    claims = Claims(transport.backend().store, 60.0)
    controller = SimpleNamespace(claims=claims, on_tick=lambda: None)
    step.start(SimpleNamespace(controller=controller))
    step.keep()
    state.task_ready(request)
    assert redis.hkeys(UNACKED) == [held.delivery_tag]
    assert redis.llen(QUEUE) == 1


def consume_answers(channel) -> list:
    """As Celery reads the replies to control commands: nothing is acknowledged."""
    answers: list = []
    queue = Queue("uuid.reply.kronos.pidbox", channel=channel)
    Consumer(channel, [queue], callbacks=[lambda body, message: answers.append(body)], no_ack=True).consume()
    return answers


def send_answer(receiver: Receiver) -> None:
    producer = receiver.connection.Producer()
    producer.publish({"ok": "pong"}, routing_key="uuid.reply.kronos.pidbox", serializer="json")


def test_jobs_are_noted_as_taken_on_a_channel_that_has_other_queues_too(redis, receiver):
    answers = consume_answers(receiver.channel)
    Consumer(receiver.channel, [Queue("added")], on_message=receiver.messages.append).consume()
    redis.lpush("added", json.dumps(message(headers={"id": "b"})))
    send(redis, "a")
    one, two = receiver.receive()
    assert [(each.headers["id"], each.delivery_info["routing_key"]) for each in (one, two)] == [
        ("a", QUEUE),
        ("b", "added"),
    ]
    assert set(redis.hkeys(UNACKED)) == {one.delivery_tag, two.delivery_tag}
    send_answer(receiver)
    receiver.connection.drain_events(timeout=WAIT_S)
    assert answers == [{"ok": "pong"}]
    two.reject(requeue=True)
    assert redis.llen("added") == 1


def test_nothing_is_taken_from_a_cancelled_queue(redis, receiver):
    consumer = Consumer(receiver.channel, [Queue("added")], on_message=receiver.messages.append)
    consumer.consume()
    consumer.cancel_by_queue("added")
    redis.lpush("added", json.dumps(message(headers={"id": "b"})))
    send(redis, "a")
    assert [each.headers["id"] for each in receiver.receive()] == ["a"]


def test_another_app_in_the_process_has_kombus_own_transport(redis, redis_server, receiver):
    other = Celery("other", broker=redis_server.url, set_as_current=False)
    received: list = []
    with other.connection_for_read() as connection:
        channel = connection.channel()
        Consumer(channel, [Queue("theirs")], on_message=received.append).consume()
        other.send_task("their.task", queue="theirs")
        connection.drain_events(timeout=WAIT_S)
        classes = type(connection.transport), type(connection.transport.cycle), type(channel)
        assert classes == (kombu_redis.Transport, kombu_redis.MultiChannelPoller, kombu_redis.Channel)
        assert type(channel.qos) is kombu_redis.QoS
        assert redis.hkeys("unacked") == [received[0].delivery_tag]
        received[0].ack()
    assert not redis.exists("unacked", UNACKED, DEAD_KEY)


def test_the_check_finds_nothing_and_leaves_nothing(redis, app):
    assert steps.problem_of(app.connection_for_read()) is None
    assert redis.keys() == []


def test_a_kombu_that_takes_messages_in_another_way_is_refused(app, monkeypatch):
    monkeypatch.setattr(kombu_redis.MultiChannelPoller, "on_poll_start", lambda poller: None)
    assert "past the worker's scripts" in steps.problem_of(app.connection_for_read())


def test_a_kombu_that_asks_for_queues_in_another_way_is_refused(app, monkeypatch):
    real = kombu_redis.Channel._update_queue_cycle
    monkeypatch.setattr(transport.Channel, "_update_queue_cycle", real)
    assert "past the worker's scripts" in steps.problem_of(app.connection_for_read())


def test_an_incompatible_kombu_ends_the_worker_with_one_line(app, monkeypatch, caplog):
    app.conf.broker_transport = None
    with pytest.raises(SystemExit) as exit_:
        steps.TransportCheck(None).start(SimpleNamespace(app=app))
    assert exit_.value.code == 1
    (record,) = caplog.records
    assert "\n" not in record.message
    assert f"kombu {kombu.__version__}" in record.message


def test_a_message_whose_receipt_fails_leaves_nothing_here(redis, receiver):
    def fail(message) -> None:
        state.task_reserved(FakeRequest(message.delivery_tag))
        raise TypeError("of Celery's")

    send(redis, "a")
    Consumer(receiver.channel, [Queue(QUEUE)], on_message=fail, accept=["json"]).consume()
    transport.message_consumer().notify()
    receiver.connection.transport.cycle.on_poll_start()
    assert held_deliveries() == ({}, set())
    assert holds_nothing(receiver)
    assert redis.llen(DEAD_KEY) == 1


class FakeRequest:
    """The part of a Celery request that the worker's state uses."""

    def __init__(self, tag: str, name: str = "kronos.forecast") -> None:
        self.id = f"job-{tag}"
        self.name = name
        self.message = SimpleNamespace(delivery_tag=tag)


def test_held_deliveries_are_reserved_or_running_and_running_ones_have_claims():
    running, waiting, status = requests = [
        FakeRequest("a"),
        FakeRequest("b"),
        FakeRequest("c", "kronos.status"),
    ]
    assert held_deliveries() == ({}, set())
    for request in requests:
        state.task_reserved(request)
    for request in (running, status):
        state.task_accepted(request)
    assert held_deliveries() == ({"a": "job-a"}, {"b", "c"})
    state.task_ready(running)
    assert held_deliveries() == ({}, {"b", "c"})
    for request in (waiting, status):
        state.task_ready(request)
    assert held_deliveries() == ({}, set())


def test_two_deliveries_of_one_job_are_both_held():
    first, second = FakeRequest("a"), FakeRequest("b")
    second.id = first.id
    for request in (first, second):
        state.task_reserved(request)
    assert held_deliveries() == ({}, {"a", "b"})
    state.task_accepted(first)
    state.task_ready(second)
    assert held_deliveries() == ({"a": "job-a"}, set())
    state.task_ready(first)
