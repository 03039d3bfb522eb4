"""Messages between their lists and their end, on a real Redis."""

import json

import pytest
from redis import Redis

from kronos_client.contract.names import DEAD_KEY
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.queues import TAKEN_KEY, delivery_keys
from tests.taking import take_one
from worker.broker.deliveries import MAX_RESTORED, SHOWN_BYTES, Deliveries

KEYS = delivery_keys("t.unacked")
UNACKED, INDEX = KEYS.unacked, KEYS.renewed
HIGH, NORMAL = "cpu", "cpu\x06\x163"
LISTS = [HIGH, NORMAL]
TIMEOUT_S = 60.0


@pytest.fixture
def deliveries(redis: Redis, redis_server) -> Deliveries:
    redis = connect(redis_server.url, decode_responses=False)
    return Deliveries(redis, KEYS, timeout_s=TIMEOUT_S, max_bytes=10_000)


@pytest.fixture
def store(redis: Redis) -> JobStore:
    return JobStore(redis, 50, KEYS, max_dead=3)


def age(redis: Redis, *tags: str, by_s: float = TIMEOUT_S + 1) -> None:
    for tag in tags:
        redis.zincrby(INDEX, -by_s, tag)


def is_empty(redis: Redis) -> bool:
    return not redis.exists(*KEYS, *LISTS, *[f"kronos:delayed:{key}" for key in LISTS])


def take_all(deliveries: Deliveries) -> list[bytes]:
    taken = []
    while delivery := take_one(deliveries, LISTS):
        taken.append(delivery.message)
    return taken


def test_a_taken_message_is_noted_and_any_bytes_come_back_whole(redis, deliveries):
    message = bytes(range(256)) + b"\n\n"
    redis.lpush(NORMAL, message)
    delivery = take_one(deliveries, LISTS)
    assert (delivery.message, delivery.source, delivery.num_bytes) == (message, NORMAL, 258)
    assert deliveries.held(delivery.tag) == message
    assert redis.llen(NORMAL) == 0
    assert redis.zscore(INDEX, delivery.tag) == pytest.approx(redis.time()[0], abs=2)
    deliveries.put_back(delivery.tag)
    assert take_all(deliveries) == [message]


def test_the_message_of_an_ended_job_is_gone(redis, deliveries, store):
    redis.lpush(NORMAL, "1")
    tag = take_one(deliveries, LISTS).tag
    store.end([Ending("a", '{"status": "SUCCESS"}', tag)])
    deliveries.put_back(tag)
    deliveries.put_back(tag, delay_s=5)
    assert is_empty(redis)
    assert redis.hget(TAKEN_KEY, NORMAL) == "1"


def test_a_message_put_back_is_served_next_from_its_own_list(redis, deliveries):
    redis.lpush(NORMAL, "1", "2")
    tag = take_one(deliveries, LISTS).tag
    deliveries.put_back(tag)
    assert take_all(deliveries) == [b"1", b"2"]
    assert redis.hget(TAKEN_KEY, NORMAL) == "2"


def test_only_unrenewed_messages_come_back_the_oldest_first(redis, deliveries):
    redis.lpush(NORMAL, "1", "2", "3", "4")
    tags = [take_one(deliveries, LISTS).tag for _ in range(4)]
    for index, tag in enumerate(tags):
        age(redis, tag, by_s=100 - index)
    age(redis, tags[1], by_s=-100)
    assert deliveries.restore_overdue() == 3
    assert set(redis.hkeys(UNACKED)) == {tags[1]}
    assert take_all(deliveries) == [b"1", b"3", b"4"]


def pass_time(redis: Redis, by_s: float) -> None:
    """As if the delayed messages had been delayed so much earlier."""
    for key in LISTS:
        for tag in redis.zrange(f"kronos:delayed:{key}", 0, -1):
            redis.zincrby(f"kronos:delayed:{key}", -by_s, tag)
            redis.zincrby(INDEX, -by_s, tag)


def test_a_message_put_back_with_a_delay_comes_after_it_before_others_of_its_list(redis, deliveries):
    redis.lpush(NORMAL, "1", "2", "3")
    first, second = (take_one(deliveries, LISTS).tag for _ in range(2))
    deliveries.put_back(second, delay_s=20)
    deliveries.put_back(first, delay_s=10)
    pass_time(redis, 9)
    assert take_one(deliveries, [HIGH]) is None
    pass_time(redis, 12)
    assert deliveries.restore_overdue() == 0
    assert take_all(deliveries) == [b"1", b"2", b"3"]
    assert not redis.exists(f"kronos:delayed:{NORMAL}")


def test_a_delay_may_be_longer_than_the_timeout(redis, deliveries):
    redis.lpush(NORMAL, "1")
    deliveries.put_back(take_one(deliveries, LISTS).tag, delay_s=1000 * TIMEOUT_S)
    pass_time(redis, 999 * TIMEOUT_S)
    assert deliveries.restore_overdue() == 0
    assert take_all(deliveries) == []


def test_a_due_message_that_no_worker_takes_is_put_back_one_timeout_later(redis, deliveries):
    redis.lpush(NORMAL, "1")
    deliveries.put_back(take_one(deliveries, LISTS).tag, delay_s=10)
    pass_time(redis, 10 + TIMEOUT_S + 1)
    assert deliveries.restore_overdue() == 1
    assert not redis.exists(f"kronos:delayed:{NORMAL}")
    assert take_all(deliveries) == [b"1"]


def test_each_delivery_has_its_own_timeout(redis, redis_server, deliveries):
    connection = connect(redis_server.url, decode_responses=False)
    hasty = Deliveries(connection, KEYS, timeout_s=4, max_bytes=10_000)
    redis.lpush(NORMAL, "1", "2")
    patient_tag, hasty_tag = take_one(deliveries, LISTS).tag, take_one(hasty, LISTS).tag
    age(redis, patient_tag, hasty_tag, by_s=10)
    assert hasty.restore_overdue() == 1
    assert redis.hkeys(UNACKED) == [patient_tag]
    redis.lpush(NORMAL, "3")
    age(redis, take_one(hasty, LISTS).tag, by_s=10)
    assert deliveries.restore_overdue() == 1


def test_after_an_outage_holders_can_renew_first(redis, deliveries):
    redis.lpush(NORMAL, "1")
    tag = take_one(deliveries, LISTS).tag
    assert deliveries.restore_overdue() == 0
    age(redis, tag)
    redis.hincrbyfloat(f"{UNACKED}_watch", "looked_at", -30)  # Redis was away
    assert deliveries.restore_overdue() == 0
    assert deliveries.restore_overdue() == 0
    redis.hincrbyfloat(f"{UNACKED}_watch", "back_at", -TIMEOUT_S / 2 - 1)
    assert deliveries.restore_overdue() == 1


def test_one_call_puts_back_a_bounded_number(redis, deliveries):
    redis.lpush(NORMAL, *range(MAX_RESTORED + 5))
    while delivery := take_one(deliveries, LISTS):
        age(redis, delivery.tag)
    assert deliveries.restore_overdue() == MAX_RESTORED
    assert deliveries.restore_overdue() == 5
    assert redis.hget(TAKEN_KEY, NORMAL) == "0"
    assert len(take_all(deliveries)) == MAX_RESTORED + 5


def bury(deliveries: Deliveries, store: JobStore, tag: str, reason: str, message: bytes) -> None:
    entry = deliveries.dead_entry(reason, queue="cpu", job_id=None, message=message)
    assert store.end([Ending("", "", tag, entry)]) == ["open"]


def test_the_newest_dead_messages_are_kept_shortened_with_their_reason(redis, deliveries, store):
    for number in range(5):
        redis.lpush(HIGH, b"\xff" + b"x" * 9_000 + str(number).encode())
        delivery = take_one(deliveries, LISTS)
        bury(deliveries, store, delivery.tag, f"reason {number}", delivery.message)
    assert is_empty(redis)
    entries = [json.loads(entry) for entry in redis.lrange(DEAD_KEY, 0, -1)]
    assert [entry["reason"] for entry in entries] == ["reason 4", "reason 3", "reason 2"]
    assert entries[0]["message"] == "\\xff" + "x" * (SHOWN_BYTES - 1)
    assert entries[0]["num_bytes"] == 9_002
    assert entries[0]["at"] == pytest.approx(redis.time()[0], abs=2)


def test_a_message_is_buried_once_even_if_the_command_repeats(redis, deliveries, store):
    redis.lpush(HIGH, "x")
    delivery = take_one(deliveries, LISTS)
    for _ in range(2):
        bury(deliveries, store, delivery.tag, "a reason", b"x")
    assert redis.llen(DEAD_KEY) == 1


def test_a_clock_of_redis_that_went_back_does_not_keep_messages_from_coming_back(redis, deliveries):
    redis.lpush(NORMAL, "1")
    age(redis, take_one(deliveries, LISTS).tag)
    ahead = redis.time()[0] + 7200
    redis.hset(f"{UNACKED}_watch", mapping={"looked_at": ahead, "not_before": ahead})
    assert deliveries.restore_overdue() == 1
