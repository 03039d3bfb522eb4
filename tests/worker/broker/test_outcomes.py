"""Jobs end in one call, and outcomes are kept while Redis refuses them, on a real Redis."""

import contextlib
import json
import threading
import time

import pytest
from redis import Redis
from redis.backoff import EqualJitterBackoff
from redis.exceptions import RedisError

from kronos_client.contract.names import DEAD_KEY, cancel_key, job_key, result_key
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import Ending, JobStore, NotStored
from kronos_client.redis.queues import delivery_keys
from tests.taking import begin_one, take_one
from tests.waiting import await_true
from worker.broker import outcomes as module
from worker.broker.deliveries import Deliveries
from worker.broker.outcomes import Outcomes

KEYS = delivery_keys("t.unacked")
DONE = '{"status": "SUCCESS"}'
RESULT_TTL_S = 50


def message(job_id: str) -> str:
    return json.dumps({"body": "", "properties": {"correlation_id": job_id}})


class Bench:
    """A worker's side: takes messages, begins jobs, and ends them as a Redis user with rights to change."""

    def __init__(self, redis: Redis, url: str) -> None:
        self.redis = redis
        self.deliveries = Deliveries(
            connect(url, decode_responses=False), KEYS, timeout_s=60, max_bytes=10_000
        )
        self.records = JobStore(redis, RESULT_TTL_S, KEYS)
        redis.execute_command("ACL", "SETUSER", "teller", "reset", "on", ">secret", "~*", "&*", "+@all")
        self.store = JobStore(connect(f"redis://teller:secret@{url.rpartition('@')[2]}"), RESULT_TTL_S, KEYS)
        self.outcomes = Outcomes(self.store)
        self.outcomes.dead_entry = lambda tag, job_id, reason: json.dumps({"id": job_id, "reason": reason})

    def allow(self, *rules: str) -> None:
        self.redis.execute_command("ACL", "SETUSER", "teller", *rules)

    def begin(self, job_id: str) -> Ending:
        """Send a job, take it and begin it; returns how it will end."""
        self.redis.hset(job_key(job_id), "fingerprint", "x")  # as admitted
        self.redis.lpush("cpu", message(job_id))
        tag = take_one(self.deliveries, ["cpu"]).tag
        assert begin_one(self.records, job_id, '{"status": "STARTED"}', tag, 60, worker="w").held_s == 0
        return Ending(job_id, DONE, tag)

    def status(self, job_id: str) -> str:
        return json.loads(self.redis.get(result_key(job_id)))["status"]

    def place(self, job_id: str) -> str:
        return self.redis.hget(job_key(job_id), "at").split()[0]

    def held(self) -> set[str]:
        """The tags of what is taken, which must be the same in all keys."""
        tags = set(self.redis.hkeys(KEYS.unacked))
        assert tags == set(self.redis.zrange(KEYS.renewed, 0, -1)) == set(self.redis.hkeys(KEYS.claims))
        return tags


@pytest.fixture
def bench(redis, redis_server):
    yield Bench(redis, redis_server.url)
    redis.execute_command("ACL", "DELUSER", "teller")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(module, "PAUSES", EqualJitterBackoff(cap=0.02, base=0.01))


def test_one_call_stores_publishes_and_removes(bench, redis):
    ending = bench.begin("a")
    assert bench.place("a") == "held"
    with redis.pubsub(ignore_subscribe_messages=True) as published:
        published.subscribe(result_key("a"))
        published.get_message(timeout=5)
        assert bench.outcomes.end(ending) == "stored"
        assert published.get_message(timeout=5)["data"] == DONE
        assert bench.outcomes.end(ending) == "stored"  # the first answer was lost
        assert published.get_message(timeout=0.05) is None
    assert (bench.status("a"), bench.place("a"), bench.held()) == ("SUCCESS", "none", set())
    assert redis.hget(job_key("a"), "ended_by") == ending.tag


def test_many_jobs_end_in_one_call_each_with_its_own_answer(bench, redis):
    endings = [bench.begin(job_id) for job_id in "abc"]
    redis.set(result_key("b"), '{"status": "FAILURE"}')  # it has an outcome already
    bench.redis.hset(job_key("c"), "holder", (other := bench.begin("d")).tag)
    assert bench.store.end([*endings, other]) == ["stored", "stored", "held", "stored"]
    assert bench.held() == {endings[2].tag}
    assert bench.status("b") == "FAILURE"


def test_a_delivery_of_an_ended_job_is_removed_and_publishes_nothing(bench, redis):
    ending = bench.begin("a")
    assert bench.store.end([Ending("a", "", ending.tag)]) == ["open"]
    assert bench.held() == {ending.tag}
    bench.outcomes.end(ending)
    redis.lpush("cpu", message("a"))
    second = take_one(bench.deliveries, ["cpu"]).tag
    with redis.pubsub(ignore_subscribe_messages=True) as published:
        published.subscribe(result_key("a"))
        published.get_message(timeout=5)
        assert bench.store.end([Ending("a", "", second)]) == ["repeated"]
        assert published.get_message(timeout=0.05) is None
    assert bench.held() == set()


FORBIDDEN = [
    "-setex", "-publish", "-hset", "-hdel", "-zrem", "-expire", "-del", "resetchannels", "resetkeys ~t.*",
    "resetkeys ~celery-task-meta-*", "-evalsha -eval", "off",
]  # fmt: skip


@pytest.mark.parametrize("forbidden", ["-ltrim", "-hset", "-zadd", "-rpush", "-zrem", "-hdel"])
def test_a_message_that_cannot_be_moved_is_not_copied(redis, redis_server, bench, forbidden):
    url = f"redis://teller:secret@{redis_server.url.rpartition('@')[2]}"
    teller = Deliveries(connect(url, decode_responses=False), KEYS, timeout_s=60, max_bytes=10_000)
    redis.lpush("cpu", message("a"))
    bench.allow(forbidden)
    for _ in range(5):
        with contextlib.suppress(RedisError):
            take_one(teller, ["cpu"])
    bench.allow("+@all")
    assert redis.llen("cpu") + redis.hlen(KEYS.unacked) == 1
    (tag,) = redis.hkeys(KEYS.unacked) or [take_one(teller, ["cpu"]).tag]
    bench.allow(forbidden)
    for _ in range(5):
        with contextlib.suppress(RedisError):
            teller.put_back(tag)
    assert redis.llen("cpu") + redis.hlen(KEYS.unacked) == 1


@pytest.mark.parametrize("rules", FORBIDDEN)
def test_what_redis_refuses_leaves_message_and_claim_and_ends_well_later(bench, quick, rules):
    ending = bench.begin("a")
    bench.allow(*rules.split())
    bench.store._redis.connection_pool.disconnect()
    with pytest.raises(RedisError):
        bench.outcomes.end(ending)
    assert bench.held() == {ending.tag}
    assert bench.place("a") in ("held", "none")  # none if the outcome is stored, and only its removal failed
    answers = []
    thread = threading.Thread(target=lambda: answers.append(bench.outcomes.end(ending, waits=True)))
    thread.start()
    time.sleep(0.1)
    # If only what follows the outcome was refused, the next call removes the message.
    assert answers == [] or bench.status("a") == "SUCCESS"
    bench.allow("on", "~*", "&*", "+@all")
    thread.join(20)
    assert answers == ["stored"]
    assert (bench.status("a"), bench.held()) == ("SUCCESS", set())


def test_a_refused_job_does_not_keep_others_of_the_call_from_ending(bench):
    endings = [bench.begin(job_id) for job_id in "ab"]
    bench.allow(
        "resetkeys", "~t.*", f"~{DEAD_KEY}", *(f"~{key('b')}" for key in (result_key, job_key, cancel_key))
    )
    first, second = bench.store.end(endings)
    assert isinstance(first, NotStored)
    assert second == "stored"
    assert bench.held() == {endings[0].tag}


@pytest.mark.parametrize("other", ["list", "string"])
def test_keys_of_other_types_do_not_keep_an_outcome_away(bench, redis, other):
    ending = bench.begin("a")
    for key in (job_key("a"), result_key("a"), cancel_key("a")):
        redis.delete(key)
        redis.lpush(key, "theirs") if other == "list" else redis.set(key, "theirs")
    assert bench.outcomes.end(ending) == "stored"
    assert (bench.status("a"), bench.held()) == ("SUCCESS", set())


def kept(bench: Bench, ending: Ending) -> tuple[threading.Thread, list[object]]:
    """A task that waits until its outcome is stored, and how that ended."""
    ends: list[object] = []

    def wait() -> None:
        try:
            ends.append(bench.outcomes.end(ending, waits=True))
        except RedisError as error:
            ends.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, ends


def test_an_outcome_that_redis_refuses_alone_goes_to_the_dead_messages(bench, quick, redis):
    poisoned = bench.begin("a")
    healthy = [bench.begin(f"b{number}") for number in range(200)]
    prefixes = [key("") for key in (result_key, job_key, cancel_key)]
    bench.allow(
        "resetkeys", "~t.*", f"~{DEAD_KEY}", *(f"~{one}{end}" for one in prefixes for end in ("", "b*"))
    )
    thread, ends = kept(bench, poisoned)
    time.sleep(0.5)
    assert not ends  # that may be Redis's state
    while not ends:
        assert bench.outcomes.end(healthy.pop()) == "stored"
        time.sleep(0.05)
    thread.join(20)
    assert isinstance(ends[0], RedisError)
    assert bench.held() == {one.tag for one in healthy}
    assert json.loads(redis.lindex(DEAD_KEY, 0))["id"] == "a"
    assert redis.get(result_key("a")) == '{"status": "STARTED"}'


def test_jobs_are_reported_once_they_are_stored_and_a_worker_takes_no_more_than_it_can_keep(
    bench, quick, monkeypatch
):
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", len(DONE))
    ending, reports = bench.begin("a"), []
    bench.outcomes.on_end = lambda *report: reports.append(report)
    bench.allow("-setex")
    given = {"task": "kronos.forecast", "outcome": {"n": 1}, "waits": True}
    thread = threading.Thread(target=lambda: bench.outcomes.end(ending, **given))
    thread.start()
    await_true(lambda: not bench.outcomes.has_room)
    assert reports == []
    bench.allow("+@all")
    thread.join(20)
    assert bench.outcomes.has_room
    assert reports == [("kronos.forecast", "a", {"n": 1})]


def test_a_full_redis_takes_outcomes(bench, redis):
    ending = bench.begin("a")
    redis.config_set("maxmemory", 1)
    try:
        assert bench.store.renew({ending.tag: "a"}, timeout_s=60) == {ending.tag: True}
        assert bench.outcomes.end(ending) == "stored"
    finally:
        redis.config_set("maxmemory", 0)
    assert (bench.status("a"), bench.held()) == ("SUCCESS", set())


def test_attempts_that_ended_without_an_outcome_are_noted_the_last_eight(bench, redis):
    ending = bench.begin("a")
    bench.records.release("a", ending.tag, "the engine\nhas stopped")
    for number in range(10):
        assert begin_one(bench.records, "a", "{}", f"tag-{number}", 60, worker=f"w{number}").held_s == 0
        redis.zrem(KEYS.renewed, f"tag-{number}")  # its worker dies, and the message is put back
    attempts = redis.hget(job_key("a"), "attempts").splitlines()
    assert len(attempts) == 8
    begun_at, ended_at, worker, how = attempts[-1].split(" ", 3)
    assert float(begun_at) <= float(ended_at)
    assert (worker, how) == ("w8", "its process or connection was lost")
