"""Several messages in one take, on a real Redis."""

import contextlib
import json
import math
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import RedisError

from kronos_client.contract.names import job_key
from kronos_client.redis.connection import connect, read_script
from kronos_client.redis.queues import TAKEN_KEY, delivery_keys, large_key
from tests.failing_script import FailingScript
from tests.taking import take_one
from worker.broker.deliveries import MAX_TAKEN, SCRIPTS, SHOWN_BYTES, Asked, Deliveries, Delivery

KEYS = delivery_keys("t.unacked")
HIGH, NORMAL = "cpu", "cpu\x06\x163"
LARGE = large_key(NORMAL)
MAX_BYTES = 10_000
MANY = Asked(max_messages=MAX_TAKEN)


@pytest.fixture
def deliveries(redis: Redis, redis_server) -> Deliveries:
    redis = connect(redis_server.url, decode_responses=False)
    return Deliveries(redis, KEYS, timeout_s=60, max_bytes=MAX_BYTES)


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
        deliveries.set_aside(take_one(deliveries, [NORMAL]).tag)
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
