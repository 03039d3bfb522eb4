"""Many jobs that begin in one call, on a real Redis."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from kronos_client.contract.errors import JobError
from kronos_client.contract.names import cancel_key, job_key, result_key
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Beginning, JobStore, NotStored, Receipt
from kronos_client.redis.queues import delivery_keys
from kronos_client.redis.scripts import read_script
from tests.failing_script import FailingScript
from tests.published import published_states

KEYS = delivery_keys("t.unacked")
TIMEOUT_S = 60.0
DONE = '{"status": "SUCCESS"}'
BEGUN = {"new": False, "cancelled": True, "lost": False, "forgotten": False, "theirs": False}
"""Those that begin, and whether they are to be cancelled."""
KINDS = [*BEGUN, "ended", "conflict", "held", "unusable", "same"]


class Bench:
    """Jobs of these kinds, each with a taken message."""

    def __init__(self, redis: Redis, kinds: list[str]) -> None:
        redis.flushall()
        self.redis = redis
        self.store = JobStore(redis, 50, KEYS)
        self.kinds = kinds
        self.beginnings = []
        for number, kind in enumerate(kinds):
            job_id = f"job-{kinds.index(kind) if kind == 'same' else number}"
            tag, started = f"tag-{number}", json.dumps({"status": "STARTED", "tag": f"tag-{number}"})
            self.take(tag, job_id)
            self.prepare(kind, job_id)
            self.beginnings.append(Beginning(job_id, started, tag, "content"))

    def take(self, tag: str, job_id: str) -> None:
        self.redis.hset(KEYS.unacked, tag, "cpu\n{}")
        self.redis.hset(KEYS.claims, tag, f"{TIMEOUT_S} {job_id}")
        self.redis.zadd(KEYS.renewed, {tag: self.redis.time()[0]})

    def prepare(self, kind: str, job_id: str) -> None:
        record, redis = job_key(job_id), self.redis
        if kind == "unusable":
            redis.set(record, "an app's")
            return
        redis.hset(record, "fingerprint", "other" if kind == "conflict" else "content")
        if kind == "conflict":
            redis.hset(record, "at", "held")
        elif kind == "ended":
            redis.set(result_key(job_id), DONE)
        elif kind == "held":
            self.take(f"holder-{job_id}", job_id)
            redis.hset(record, "holder", f"holder-{job_id}")
        elif kind == "lost":
            redis.hset(record, "holder", "gone")
        elif kind == "forgotten":
            redis.hset(record, "ended_at", "1.0")
        elif kind == "theirs":
            redis.lpush(result_key(job_id), "another app's")
        elif kind == "cancelled":
            redis.set(cancel_key(job_id), "1")

    def begin(self) -> list[Any]:
        return self.store.begin_all(self.beginnings, TIMEOUT_S, "w")

    def assert_as_expected(self, number: int, answer: Any) -> None:
        kind, one = self.kinds[number], self.beginnings[number]
        holder = None if kind == "unusable" else self.redis.hget(job_key(one.job_id), "holder")
        is_first = kind == "same" and self.kinds.index(kind) == number
        if kind in BEGUN or is_first:
            assert (answer.held_s, answer.is_cancelled) == (0, BEGUN.get(kind, False))
            assert (answer.lost > 0) == (kind == "lost")
            assert holder == one.tag
            assert self.redis.get(result_key(one.job_id)) == one.state
            assert self.redis.hget(job_key(one.job_id), "at").split()[0::3] == ["held", one.tag]
        elif kind in ("held", "same"):
            assert TIMEOUT_S - 5 < answer.held_s <= TIMEOUT_S
            assert holder != one.tag
        elif kind == "unusable":
            assert isinstance(answer, JobError)
            assert self.redis.get(job_key(one.job_id)) == "an app's"
        else:
            assert (answer, holder) == (kind, None)
            assert not self.redis.hexists(job_key(one.job_id), "at")


@given(st.lists(st.sampled_from(KINDS), max_size=64))
def test_each_job_of_a_call_has_its_own_answer(redis, kinds):
    bench = Bench(redis, kinds)
    with published_states(redis) as states:
        answers = bench.begin()
    for number, answer in enumerate(answers):
        bench.assert_as_expected(number, answer)
    begun = [isinstance(answer, Receipt) and answer.held_s == 0 for answer in answers]
    tags = Counter(state["tag"] for state in states)
    assert tags == {f"tag-{number}": 1 for number, has_begun in enumerate(begun) if has_begun}


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=20))
def test_a_call_whose_answer_was_lost_may_be_repeated(redis, kinds):
    bench = Bench(redis, kinds)
    first, again = bench.begin(), bench.begin()
    for number, answer in enumerate(again):
        bench.assert_as_expected(number, answer)
        assert type(answer) is type(first[number])


@settings(max_examples=100)
@given(st.lists(st.sampled_from(KINDS), min_size=2, max_size=6), st.integers(1, 120))
def test_an_error_amid_a_call_is_the_affair_of_one_job(redis, kinds, at_call):
    bench = Bench(redis, kinds)
    bench.store._run["begin"] = script = FailingScript(redis, read_script("begin"))
    script.at_call = at_call
    answers = bench.begin()
    failed = [number for number, answer in enumerate(answers) if isinstance(answer, NotStored)]
    assert len(failed) <= 1 or len(failed) == len(kinds)  # all if Redis takes no writes
    if len(failed) == len(kinds):
        assert not redis.keys(result_key("*")) or {"ended", "theirs"} & set(kinds)
    script.at_call = 0
    for number, answer in enumerate(bench.begin()):
        if kinds[number] != "same":
            bench.assert_as_expected(number, answers[number] if number not in failed else answer)


@pytest.mark.parametrize("rules", ["-setex", "-publish", "-hset", "-zadd", "-hdel", "resetkeys ~t.*"])
def test_what_redis_forbids_is_an_answer_and_the_call_may_be_repeated(redis, redis_server, rules):
    redis.execute_command("ACL", "SETUSER", "teller", "reset", "on", ">secret", "~*", "&*", "+@all")
    bench = Bench(redis, ["new", "held", "lost", "unusable", "cancelled"])
    url = f"redis://teller:secret@{redis_server.url.rpartition('@')[2]}"
    bench.store = JobStore(connect(url), 50, KEYS)
    redis.execute_command("ACL", "SETUSER", "teller", *rules.split())
    assert all(isinstance(answer, NotStored | JobError | Receipt) for answer in bench.begin())
    redis.execute_command("ACL", "SETUSER", "teller", "~*", "&*", "+@all")
    for number, answer in enumerate(bench.begin()):
        bench.assert_as_expected(number, answer)
