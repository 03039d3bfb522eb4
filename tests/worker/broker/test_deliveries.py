"""Messages between their lists and their end, on a real Redis."""

import contextlib
import json
import math
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import RedisError

from kronos_client.contract.names import DEAD_KEY, job_key
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.queues import TAKEN_KEY, delivery_keys, large_key
from kronos_client.redis.scripts import read_script
from tests.failing_script import FailingScript
from tests.taking import take_one
from worker.broker.deliveries import (
    MAX_RESTORED,
    MAX_TAKEN,
    SCRIPTS,
    SHOWN_BYTES,
    Asked,
    Deliveries,
    Delivery,
)

KEYS = delivery_keys("t.unacked")
UNACKED, INDEX = KEYS.unacked, KEYS.renewed
HIGH, NORMAL = "cpu", "cpu\x06\x163"
LISTS = [HIGH, NORMAL]
TIMEOUT_S = 60.0
LARGE = large_key(NORMAL)
MAX_BYTES = 10_000
MANY = Asked(max_messages=MAX_TAKEN)


@pytest.fixture
def deliveries(redis: Redis, redis_server) -> Deliveries:
    redis = connect(redis_server.url, decode_responses=False)
    return Deliveries(redis, KEYS, timeout_s=TIMEOUT_S, max_bytes=MAX_BYTES)


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
    hasty = Deliveries(connection, KEYS, timeout_s=4, max_bytes=MAX_BYTES)
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


def test_messages_of_a_dead_worker_come_back_in_time_though_the_clock_went_back(redis, deliveries):
    redis.lpush(NORMAL, "held", "delayed")
    delayed_tag, held_tag = take_one(deliveries, LISTS).tag, take_one(deliveries, LISTS).tag
    deliveries.put_back(delayed_tag, delay_s=20)
    for tag in (delayed_tag, held_tag):
        redis.zincrby(f"{UNACKED}_index", 7200, tag)
    redis.hset(f"{UNACKED}_watch", "looked_at", redis.time()[0] + 7200)
    assert deliveries.restore_overdue() == 0
    assert redis.zscore(f"{UNACKED}_index", delayed_tag) == pytest.approx(redis.time()[0] + 20, abs=3)
    age(redis, held_tag)
    assert deliveries.restore_overdue() == 1
    age(redis, delayed_tag, by_s=TIMEOUT_S + 23)
    assert deliveries.restore_overdue() == 1


def message(job_id: str, num_bytes: int = 0) -> str:
    text = json.dumps({"body": "", "properties": {"correlation_id": job_id}})
    return " " * (num_bytes - len(text)) + text


def send(redis: Redis, *job_ids: str, num_bytes: int = 0, key: str = NORMAL) -> list[str]:
    """Sends jobs as admitted; returns their messages in order."""
    sent = [message(job_id, num_bytes) for job_id in job_ids]
    for job_id, text in zip(job_ids, sent, strict=True):
        redis.hset(job_key(job_id), "fingerprint", "x")
        redis.lpush(key, text)
    return sent


def texts(taken: list[Delivery]) -> list[str]:
    return [delivery.message.decode() for delivery in taken]


def held(redis: Redis) -> dict[str, str]:
    """Messages by tag, which must be the same in all keys."""
    found = redis.hgetall(KEYS.unacked)
    assert set(found) == set(redis.zrange(KEYS.renewed, 0, -1)) == set(redis.hkeys(KEYS.claims))
    return {tag: value.partition("\n")[2] for tag, value in found.items()}


@given(
    sizes=st.lists(st.integers(100, 3000), max_size=40),
    max_messages=st.integers(1, MAX_TAKEN),
    max_bytes=st.integers(0, 20_000),
)
def test_half_of_a_list_is_taken_within_the_bounds(redis, deliveries, sizes, max_messages, max_bytes):
    redis.flushall()
    sent = [send(redis, f"job-{number}", num_bytes=size)[0] for number, size in enumerate(sizes)]
    taken = deliveries.take_all({HIGH: MANY, NORMAL: Asked(0.0, max_messages)}, max_bytes=max_bytes)
    num_fitting = sum(total <= max_bytes for total in accumulate(sizes))
    expected = min(max_messages, math.ceil(len(sent) / 2), max(1, num_fitting))
    assert texts(taken) == sent[:expected]
    assert redis.lrange(NORMAL, 0, -1)[::-1] == sent[expected:]
    assert held(redis) == {one.tag: one.message.decode() for one in taken}
    assert redis.hget(TAKEN_KEY, NORMAL) == (str(expected) if expected else None)
    for number, one in enumerate(taken):
        assert (one.source, one.num_bytes, one.is_whole) == (NORMAL, sizes[number], True)
        assert one.others == ({NORMAL} if len(sent) > expected else set())
        place = redis.hget(job_key(f"job-{number}"), "at").split()
        assert (place[0], place[-1]) == ("held", one.tag)


def test_messages_of_one_list_are_taken_in_a_call(redis, deliveries):
    sent = send(redis, "a", "b", key=HIGH), send(redis, "c", "d")
    asked = {HIGH: MANY, NORMAL: MANY}
    taken = [deliveries.take_all(asked, max_bytes=MAX_BYTES) for _ in range(4)]
    assert [texts(one) for one in taken] == [sent[0][:1], sent[0][1:], sent[1][:1], sent[1][1:]]
    assert [one[0].others for one in taken] == [{HIGH, NORMAL}, {NORMAL}, {NORMAL}, set()]


def test_a_command_that_is_sent_twice_takes_the_same_messages(redis, deliveries, monkeypatch):
    sent = send(redis, *"abcdefg")
    monkeypatch.setattr("worker.broker.deliveries.uuid.uuid4", lambda: type("", (), {"hex": "same"}))
    first = deliveries.take_all({NORMAL: MANY}, max_bytes=MAX_BYTES)
    again = deliveries.take_all({NORMAL: MANY}, max_bytes=MAX_BYTES)
    assert first == again
    assert texts(first) == sent[:4]
    assert redis.llen(NORMAL) == 3
    deliveries.put_back(first[1].tag)  # as another worker's restore
    third = deliveries.take_all({NORMAL: MANY}, max_bytes=MAX_BYTES)
    assert third == [first[0], *first[2:]]


@pytest.mark.parametrize("large", [{0}, {1}, {0, 2}, {0, 1, 2, 3}])
def test_too_large_messages_are_cut_among_others(redis, deliveries, large):
    sizes = [3 * MAX_BYTES if place in large else 100 for place in range(8)]
    sent = [send(redis, f"job-{number}", num_bytes=size)[0] for number, size in enumerate(sizes)]
    taken = deliveries.take_all({NORMAL: MANY}, max_bytes=10**6)
    assert [one.is_whole for one in taken] == [place not in large for place in range(4)]
    assert [one.num_bytes for one in taken] == sizes[:4]
    for one, text in zip(taken, sent, strict=False):
        shown = text if one.is_whole else text[:SHOWN_BYTES] + text[-SHOWN_BYTES:]
        assert one.message.decode() == shown
    assert [held(redis)[one.tag] for one in taken] == sent[:4]


def test_second_lists_give_what_has_waited_long_enough_without_the_moment(redis, deliveries):
    sent = send(redis, *"abcdefgh")
    for _ in sent:
        deliveries.move_to_large(take_one(deliveries, [NORMAL]).tag)
    for place in range(1, 4):  # the first three are older
        at, _, text = redis.lindex(LARGE, -place).partition("\n")
        redis.lset(LARGE, -place, f"{float(at) - 31:.6f}\n{text}")
    asked = {NORMAL: MANY, LARGE: Asked(30.0, MAX_TAKEN)}
    taken = deliveries.take_all(asked, max_bytes=MAX_BYTES)
    assert texts(taken) == sent[:3]
    assert {one.source for one in taken} == {LARGE}
    assert {one.others for one in taken} == {frozenset()}
    assert deliveries.take_all(asked, max_bytes=MAX_BYTES) == []
    deliveries.put_back(taken[1].tag)  # it has waited long enough
    assert texts(deliveries.take_all(asked, max_bytes=MAX_BYTES)) == [sent[1]]
    assert texts(deliveries.take_all({LARGE: MANY}, max_bytes=MAX_BYTES)) == sent[3:6]


def test_of_a_full_redis_one_is_taken(redis, deliveries):
    sent = send(redis, *"abcd")
    redis.config_set("maxmemory", 1)
    try:
        assert deliveries.take_all({NORMAL: MANY}, holds_others=True, max_bytes=MAX_BYTES) == []
        assert deliveries.is_full
        assert texts(deliveries.take_all({NORMAL: MANY}, max_bytes=MAX_BYTES)) == sent[:1]
    finally:
        redis.config_set("maxmemory", 0)


def assert_nothing_lost(redis: Redis, sent: list[str]) -> None:
    """Each message is on its list or taken, and its record does not say otherwise."""
    waiting, taken = redis.lrange(NORMAL, 0, -1), list(held(redis).values())
    assert sorted([*waiting, *taken]) == sorted(sent)
    for text in waiting:
        job_id = json.loads(text)["properties"]["correlation_id"]
        assert not (redis.hget(job_key(job_id), "at") or "").startswith("held")


FORBIDDEN = [
    "-ltrim", "-hset", "-zadd", "-zrem", "-hdel", "-hget", "-hincrby", "-llen", "-lindex", "-exists",
    "resetkeys ~t.* ~cpu*", "resetkeys ~cpu* ~kronos:*", "resetkeys ~t.* ~kronos:*",
]  # fmt: skip


@pytest.mark.parametrize("rules", FORBIDDEN)
def test_what_redis_forbids_leaves_each_message_on_its_list_or_taken(redis, redis_server, rules):
    redis.execute_command("ACL", "SETUSER", "teller", "reset", "on", ">secret", "~*", "&*", "+@all")
    url = f"redis://teller:secret@{redis_server.url.rpartition('@')[2]}"
    connection = connect(url, decode_responses=False)
    deliveries = Deliveries(connection, KEYS, timeout_s=60, max_bytes=MAX_BYTES)
    sent = send(redis, *"abcdefgh")
    redis.execute_command("ACL", "SETUSER", "teller", *rules.split())
    for _ in range(3):
        with contextlib.suppress(RedisError):
            deliveries.take_all({NORMAL: MANY}, max_bytes=MAX_BYTES)
        assert_nothing_lost(redis, sent)
    redis.execute_command("ACL", "SETUSER", "teller", "~*", "+@all")
    while deliveries.take_all({NORMAL: MANY}, max_bytes=MAX_BYTES):
        pass
    assert sorted(held(redis).values()) == sorted(sent)


@settings(max_examples=100)
@given(st.integers(1, 50))
def test_an_error_amid_a_take_leaves_each_message_on_its_list_or_taken(redis, deliveries, at_call):
    redis.flushall()
    sent = send(redis, *"abcdefgh")
    deliveries._run_take = script = FailingScript(deliveries._redis, read_script("take", SCRIPTS))
    script.at_call, taken = at_call, []
    with contextlib.suppress(RedisError):
        taken = deliveries.take_all({NORMAL: MANY}, max_bytes=MAX_BYTES)
    assert_nothing_lost(redis, sent)
    assert set(texts(taken)) <= set(held(redis).values())
    script.at_call = 0
    for tag in held(redis):
        deliveries.put_back(tag)
    left = []
    while taken := deliveries.take_all({NORMAL: MANY}, max_bytes=MAX_BYTES):
        left += texts(taken)
    assert sorted(left) == sent
