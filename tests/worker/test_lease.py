"""A lease is one worker's, in Redis and as its holder counts it."""

import threading
import time

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from worker.contract.names import job_key
from worker.jobs import JobRecords
from worker.lease import JobLease

LEASE_S = 30.0


@pytest.fixture
def records(redis):
    return JobRecords(redis, result_ttl_s=50)


def begin(records: JobRecords, token: str, lease_s: float = LEASE_S):
    return records.begin("a", "result-a", '{"status": "STARTED"}', lease_token=token, lease_s=lease_s)


def store(records: JobRecords, token: str, state: str = '{"status": "SUCCESS"}') -> bool:
    return records.store("a", "result-a", state, is_outcome=True, lease_token=token)


def run_out(redis) -> None:
    """As if the lease's time were over."""
    redis.hset(job_key("a"), "lease_until", "1.0")


def test_only_one_holds_it_and_the_other_stores_nothing(records, redis):
    assert begin(records, "x").held_s == 0
    redis.set("result-a", '{"status": "PROGRESS"}')
    assert 0 < begin(records, "y").held_s <= LEASE_S
    assert redis.get("result-a") == '{"status": "PROGRESS"}'
    assert not store(records, "y")
    assert not store(records, "")
    assert not records.renew_lease("a", "y", LEASE_S)
    records.release_lease("a", "y")
    assert begin(records, "y").held_s > 0
    assert store(records, "x")
    assert begin(records, "y") is None


def test_what_ran_out_or_was_released_can_be_taken_and_the_former_holder_knows(records, redis):
    begin(records, "x")
    run_out(redis)
    assert begin(records, "y").held_s == 0
    assert not records.renew_lease("a", "x", LEASE_S)
    assert not store(records, "x")
    records.release_lease("a", "y")
    assert begin(records, "z").held_s == 0
    assert store(records, "z")
    record = redis.hgetall(job_key("a"))
    assert not [name for name in record if name.startswith("lease_")]


def test_who_was_late_and_was_not_followed_still_holds_it(records, redis):
    begin(records, "x")
    run_out(redis)
    assert records.renew_lease("a", "x", LEASE_S)
    assert begin(records, "y").held_s > 0
    run_out(redis)
    assert store(records, "x")


def test_a_redis_that_forgot_the_record_has_it_made_again(records, redis):
    begin(records, "x")
    redis.flushall()
    assert records.renew_lease("a", "x", LEASE_S)
    assert begin(records, "y").held_s > 0
    redis.flushall()
    assert store(records, "x")


def test_a_job_that_ended_has_no_lease(records):
    begin(records, "x")
    store(records, "x")
    assert not records.renew_lease("a", "x", LEASE_S)


def test_the_time_under_leases_adds_up(records, redis):
    assert begin(records, "x").leased_s == 0
    redis.hincrbyfloat(job_key("a"), "leased_at", -7)
    records.renew_lease("a", "x", LEASE_S)
    records.release_lease("a", "x")
    assert begin(records, "y").leased_s == pytest.approx(7, abs=1)


def test_a_job_without_lease_is_as_ever(records):
    assert records.begin("a", "result-a", "{}").held_s == 0
    assert store(records, "")


def test_its_keeper_renews_it_and_does_its_chore(records, redis):
    chores = threading.Semaphore(0)
    lease = JobLease(records, "a", 0.4, chores.release)
    asked_at = time.monotonic()
    assert begin(records, lease.token, 0.4).held_s == 0
    assert lease.left_s < 0
    lease.taken(asked_at)
    for _ in range(20):  # 0.05 s apart: longer than the lease
        assert chores.acquire(timeout=10)
    assert lease.is_safe
    assert begin(records, "y", 0.4).held_s > 0
    lease.release()
    assert begin(records, "y", 0.4).held_s == 0


def test_its_keeper_hears_that_another_has_it(records, redis):
    lease = JobLease(records, "a", 0.4)
    lease.taken(time.monotonic())
    redis.hset(job_key("a"), mapping={"lease_token": "y", "lease_until": "9e9"})
    lease._thread.join(10)
    assert not lease._thread.is_alive()
    assert not lease.is_safe
    assert lease.is_running_out


class AwayRecords:
    """Redis away."""

    def renew_lease(self, *_: object) -> bool:
        raise RedisConnectionError("away")

    release_lease = renew_lease


def test_without_redis_it_runs_out_here_before_it_does_there():
    lease = JobLease(AwayRecords(), "a", 10.0)  # type: ignore[arg-type]
    now = time.monotonic()
    lease.taken(now - 5)
    assert (lease.is_safe, lease.is_running_out) == (True, False)
    lease._good_until = now + 3.9
    assert (lease.is_safe, lease.is_running_out) == (False, False)
    lease._good_until = now + 1.4
    assert (lease.is_safe, lease.is_running_out) == (False, True)
    lease.release()
