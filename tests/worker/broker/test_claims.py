"""Claims on jobs, in Redis and on their holder's clock."""

import threading
import time
from types import SimpleNamespace

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from kronos_client.contract.names import job_key, result_key
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.redis.queues import delivery_keys
from tests.taking import begin_one
from worker.broker import steps, transport
from worker.broker.claims import Claim, Claims
from worker.broker.deliveries import Deliveries
from worker.inference import forced_shutdown
from worker.process import current

TIMEOUT_S = 30.0
KEYS = delivery_keys("test.unacked")
UNACKED, INDEX = KEYS.unacked, KEYS.renewed


@pytest.fixture
def repeated() -> list[str]:
    return []


@pytest.fixture
def store(redis, repeated) -> JobStore:
    return JobStore(redis, 50, KEYS, repeated.append)


@pytest.fixture
def claims(store) -> Claims:
    return Claims(store, TIMEOUT_S)


def begin(store: JobStore, tag: str, job_id: str = "a"):
    store._redis.hset(UNACKED, tag, "cpu\na")  # as it was taken
    return begin_one(store, job_id, '{"status": "STARTED"}', tag, TIMEOUT_S)


def end(store: JobStore, tag: str, status: str = "SUCCESS") -> str:
    (answer,) = store.end([Ending("a", f'{{"status": "{status}"}}', tag)])
    return answer


def renew(store: JobStore, tag: str) -> bool:
    return store.renew({tag: "a"}, timeout_s=TIMEOUT_S)[tag]


def put_back(redis, tag: str) -> None:
    """Put back, as if no worker renewed the delivery or it was requeued."""
    redis.zrem(INDEX, tag)
    redis.hdel(UNACKED, tag)


def test_only_the_holder_can_store_an_outcome(store, redis):
    assert begin(store, "x").held_s == 0
    redis.set(result_key("a"), '{"status": "PROGRESS"}')
    assert 0 < begin(store, "y").held_s <= TIMEOUT_S
    assert redis.get(result_key("a")) == '{"status": "PROGRESS"}'
    assert end(store, "y") == end(store, "") == "held"
    assert not renew(store, "y")
    store.release("a", "y")
    assert begin(store, "y").held_s > 0
    assert end(store, "x") == "stored"
    assert begin(store, "y") == "ended"


def test_a_job_put_back_or_released_can_be_claimed_and_the_former_holder_is_refused(store, redis):
    begin(store, "x")
    put_back(redis, "x")
    assert begin(store, "y").held_s == 0
    assert not renew(store, "x")
    assert end(store, "x") == "held"
    store.release("a", "y")
    assert begin(store, "z").held_s == 0
    assert end(store, "z") == "stored"
    assert end(store, "x") == "repeated"
    assert "holder" not in redis.hgetall(job_key("a"))


def test_an_unrenewed_delivery_loses_its_claim_when_it_is_put_back(store, redis, redis_server):
    deliveries = Deliveries(redis, KEYS, timeout_s=TIMEOUT_S, max_bytes=100)
    redis.lpush("cpu", "a")
    begin(store, "x")
    redis.zincrby(INDEX, -TIMEOUT_S - 1, "x")
    assert begin(store, "y").held_s == 1  # not put back yet
    assert deliveries.restore_overdue() == 1
    assert (begin(store, "y").held_s, begin(store, "y").lost) == (0, 1)
    assert redis.lrange("cpu", 0, -1) == ["a", "a"]


def test_a_late_holder_keeps_its_claim_if_no_other_took_it(store, redis):
    begin(store, "x")
    put_back(redis, "x")
    assert renew(store, "x")
    assert begin(store, "y").held_s > 0
    put_back(redis, "x")
    assert end(store, "x") == "stored"


def test_a_renewal_restores_a_lost_record(store, redis, repeated):
    begin(store, "x")
    redis.flushall()
    assert renew(store, "x")
    assert begin(store, "y").held_s > 0
    redis.flushall()
    assert end(store, "x") == "stored"
    assert repeated == []
    assert renew(store, "x")  # sent before the outcome was stored, or before the message is acknowledged
    assert not redis.hexists(job_key("a"), "holder")
    assert redis.zscore(INDEX, "x") is None


@pytest.mark.parametrize("forge", ["key", "field"])
def test_a_record_that_cannot_be_read_costs_no_claim(store, redis, forge):
    for job_id in "ab":
        begin(store, f"tag-{job_id}", job_id)
        redis.zincrby(INDEX, -TIMEOUT_S, f"tag-{job_id}")
    if forge == "key":
        redis.delete(job_key("a"))
        redis.lpush(job_key("a"), "another program's")
    else:
        redis.hset(job_key("a"), "renewed_at", "soon")
    renewed = store.renew({"tag-a": "a", "tag-b": "b"}, timeout_s=TIMEOUT_S)
    assert renewed == {"tag-a": True, "tag-b": True}
    assert redis.zcount(INDEX, redis.time()[0] - 1, "+inf") == 2


def test_a_job_that_ended_has_no_claim(store, redis, repeated):
    begin(store, "x")
    end(store, "x")
    put_back(redis, "x")
    assert renew(store, "x")  # nothing is wrong: the outcome is its own
    assert redis.zscore(INDEX, "x") is None
    assert end(store, "x") == "stored"  # sent twice, since the first answer was lost
    assert repeated == []


def test_deliveries_are_renewed_in_one_script_each_claim_with_its_own_answer(store, redis):
    for job_id in "abc":
        begin(store, job_id, job_id)
    redis.zadd(INDEX, dict.fromkeys(["received", *"abc"], 1))
    redis.hset(UNACKED, "received", "cpu\nmessage")
    put_back(redis, "b")
    begin(store, "y", "b")
    renewed = store.renew(
        {job_id: job_id for job_id in "abc"}, ["received", "acknowledged"], timeout_s=TIMEOUT_S
    )
    assert renewed == {"a": True, "b": False, "c": True}
    scores = dict(redis.zrange(INDEX, 0, -1, withscores=True))
    assert scores.keys() == {"a", "c", "y", "received"}
    assert min(scores.values()) == pytest.approx(redis.time()[0], abs=2)
    assert store.renew({}, timeout_s=TIMEOUT_S) == {}


def test_a_received_job_has_no_claim_before_it_begins(store, redis):
    begin_one(store, "a", "{}", "x", TIMEOUT_S)
    store.release("a", "x")
    put_back(redis, "x")  # handed back; Celery has not forgotten the request yet
    assert renew(store, "x")
    assert redis.zscore(INDEX, "x") is None
    assert begin(store, "y").held_s == 0


def test_the_time_under_claims_adds_up(store, redis):
    assert begin(store, "x").worked_s == 0
    redis.hincrbyfloat(job_key("a"), "renewed_at", -7)
    renew(store, "x")
    store.release("a", "x")
    assert begin(store, "y").worked_s == pytest.approx(7, abs=1)


def test_a_clock_of_redis_that_went_back_holds_a_job_no_longer_than_the_timeout(store, redis):
    begin(store, "x")
    redis.zincrby(INDEX, 7200, "x")
    assert begin(store, "y").held_s == TIMEOUT_S
    # Its holder renews it, if it lives.
    assert redis.zscore(INDEX, "x") <= redis.time()[0] + 1


def test_only_attempts_lost_with_their_process_count(store, redis):
    assert begin(store, "a").lost == 0
    assert begin(store, "a").lost == 0  # sent twice, since the first answer was lost
    store.release("a", "a")
    assert begin(store, "b").lost == 0
    put_back(redis, "b")
    assert begin(store, "c").lost == 1
    store.release("a", "c", is_lost=True)
    receipt = begin(store, "d")
    assert (receipt.lost, receipt.is_suspect) == (2, True)
    store.release("a", "c", is_lost=True)  # another's by now
    assert begin(store, "d").lost == 2


def test_isolated_attempts_count_only_under_the_claim(store):
    begin(store, "x")
    assert store.count("a", "y", "lost_alone") is None
    assert store.count("a", "x", "lost_alone") == 1
    assert store.count("a", "x", "lost_alone") == 2
    begin(store, "x")
    assert store.count("a", "x", "lost_alone") == 3
    end(store, "x")
    assert store.count("a", "x", "lost_alone") is None


def test_a_job_sent_again_after_its_outcome_expired_is_not_a_suspect(store, redis):
    begin(store, "x")
    for _ in range(2):
        put_back(redis, "x")
        begin(store, "y")
        store.count("a", "y", "lost_alone")
        put_back(redis, "y")
        begin(store, "x")
    end(store, "x")
    redis.delete(result_key("a"))
    receipt = begin(store, "z")
    assert (receipt.lost, receipt.is_suspect) == (0, False)
    assert store.count("a", "z", "lost_alone") == 1


def test_a_holder_finds_out_that_another_worker_has_or_finished_its_job(store, redis, repeated):
    begin(store, "x")
    put_back(redis, "x")
    begin(store, "y")
    renew(store, "x")
    assert repeated == ["x"]
    end(store, "y")
    renew(store, "x")
    end(store, "x")
    assert repeated == ["x"] * 3


def test_without_a_claim_an_outcome_counts_after_the_holder_is_gone(store, redis):
    begin(store, "x")
    put_back(redis, "x")
    assert end(JobStore(redis, 50), "", "FAILURE") == "held"  # a client cannot know
    assert end(store, "", "FAILURE") == "stored"


def hold(claims: Claims, store: JobStore, job_id: str, tag: str, **more) -> Claim:
    asked_at = time.monotonic()
    assert begin(store, tag, job_id).held_s == 0
    return claims.hold(job_id, tag, asked_at, **more)


def test_a_claim_that_was_renewed_lasts_as_long_again(claims, store):
    first, second = (hold(claims, store, job_id, job_id) for job_id in "ab")
    for claim in (first, second):
        claim.renew(time.monotonic() - TIMEOUT_S)
    claims.renew({"a": "a"})
    assert first.is_safe
    assert second.is_running_out
    assert [claims.has(job_id) for job_id in "abc"] == [True, True, False]


def test_a_released_job_can_be_claimed_at_once_and_a_dropped_one_cannot(claims, store):
    for job_id in "ab":
        hold(claims, store, job_id, job_id)
    claims.release("a", "a", "handed back")
    claims.drop("b")
    assert [claims.has(job_id) for job_id in "ab"] == [False, False]
    assert begin(store, "y", "a").held_s == 0
    assert begin(store, "y", "b").held_s > 0


def test_a_claim_is_forgotten_even_if_redis_is_away(claims, store, monkeypatch):
    def away(*_: object, **__: object) -> None:
        raise RedisConnectionError("away")

    hold(claims, store, "a", "x")
    monkeypatch.setattr(store, "release", away)
    claims.release("a", "x", "handed back")
    assert not claims.has("a")


def test_a_lost_claim_is_reported_once(claims, store, redis):
    claim = hold(claims, store, "a", "x")
    redis.hset(job_key("a"), "holder", "y")
    claims.renew({"x": "a"})
    assert claim.is_taken_away
    assert not claim.is_safe
    assert claim.is_running_out
    assert not claims.take_away("x")
    assert not claims.take_away("unknown")


def test_a_claim_that_is_granted_during_a_renewal_is_kept(store, redis, repeated, monkeypatch):
    """The record still named the former holder when the renewal ran. It used to cost the job its outcome."""
    begin(store, "former")
    put_back(redis, "former")
    claims = Claims(store, TIMEOUT_S)
    ask, granted = store.renew, []

    def renew_amid_the_beginning(*arguments, **more):
        answers = ask(*arguments, **more)
        assert answers == {"next": False}
        begin(store, "next")
        granted.append(claims.hold("a", "next", time.monotonic()))
        return answers

    monkeypatch.setattr(store, "renew", renew_amid_the_beginning)
    claims.renew({"next": "a"})
    assert not granted[0].is_taken_away
    assert repeated == []
    assert end(store, "next") == "stored"


def test_without_redis_a_claim_ends_here_before_it_ends_in_redis():
    now = time.monotonic()
    claim = Claim("a", 10.0, now - 5)
    assert (claim.is_safe, claim.is_running_out) == (True, False)
    claim.renew(now - 6.1)
    assert (claim.is_safe, claim.is_running_out) == (False, False)
    claim.renew(now - 8.6)
    assert (claim.is_safe, claim.is_running_out) == (False, True)


@pytest.fixture
def renewal(settings, monkeypatch, claims):
    """The step as a worker with jobs in this process starts it, without its thread."""
    monkeypatch.setattr(steps, "get_settings", lambda: settings)
    deliveries = SimpleNamespace(restore_overdue=lambda: 0)
    monkeypatch.setattr(transport, "message_consumer", lambda: SimpleNamespace(deliveries=deliveries))
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    step = steps.ClaimRenewal(None)
    controller = SimpleNamespace(claims=claims, on_tick=forced_shutdown.ShutdownLimit().check)
    step.start(SimpleNamespace(controller=controller))
    return step


def test_a_renewal_that_fails_stays_due_and_ticks_wait_for_redis(renewal, claims, store, monkeypatch):
    ticks: list[None] = []
    claim = hold(claims, store, "a", "x", on_tick=lambda: ticks.append(None))
    claim.renew(time.monotonic() - TIMEOUT_S)
    monkeypatch.setattr(transport, "held_deliveries", lambda: ({"x": "a"}, set()))
    real, failures = store.renew, [RedisConnectionError("away"), ValueError("a defect")]

    def away(*args, **more):
        if failures:
            raise failures.pop()
        return real(*args, **more)

    monkeypatch.setattr(store, "renew", away)
    for _ in range(2):
        renewal.keep()
    assert claim.is_running_out
    assert ticks == []
    for _ in range(2):
        renewal.keep()
    assert claim.is_safe
    assert len(ticks) == 2


def test_a_shutdown_that_hangs_ends_once_no_job_is_left(renewal, monkeypatch):
    ended: list[str] = []
    monkeypatch.setattr(forced_shutdown, "end_at_once", ended.append)
    monkeypatch.setattr(forced_shutdown, "ENDING_GRACE_S", 0.0)
    process = SimpleNamespace(jobs=["a"])
    monkeypatch.setattr(current, "process", process)
    renewal.keep()
    monkeypatch.setattr(current, "is_draining", True)
    for _ in range(2):
        renewal.keep()
    assert ended == []
    process.jobs.clear()
    for _ in range(2):
        renewal.keep()
        time.sleep(0.001)
    assert "the shutdown hangs" in ended[0]
    assert "in test_a_shutdown_that_hangs" in ended[0]
