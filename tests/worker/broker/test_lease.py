"""A lease is one worker's, in Redis and as its holder counts it."""

import threading
import time

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from kronos_client.contract.names import job_key
from kronos_client.redis.job_store import JobRecords
from worker.broker.lease import Lease, LeaseKeeper

LEASE_S = 30.0


@pytest.fixture
def repeated() -> list[str]:
    return []


@pytest.fixture
def records(redis, repeated):
    return JobRecords(redis, result_ttl_s=50, on_repeated=repeated.append)


@pytest.fixture
def start_keeper(records):
    keepers: list[LeaseKeeper] = []

    def start(lease_s: float = LEASE_S, **kwargs) -> LeaseKeeper:
        keepers.append(LeaseKeeper(records, lease_s, **kwargs))
        return keepers[-1]

    yield start
    for keeper in keepers:
        keeper.stop()


def begin(records: JobRecords, token: str, lease_s: float = LEASE_S, job_id: str = "a"):
    started = '{"status": "STARTED"}'
    return records.begin(job_id, f"result-{job_id}", started, lease_token=token, lease_s=lease_s)


def store(records: JobRecords, token: str, state: str = '{"status": "SUCCESS"}') -> bool:
    return records.store("a", "result-a", state, is_outcome=True, lease_token=token)


def renew(records: JobRecords, token: str) -> bool:
    return records.renew_leases([("a", token)], LEASE_S)[0]


def run_out(redis, job_id: str = "a") -> None:
    """As if the lease's time were over."""
    redis.hset(job_key(job_id), "lease_until", "1.0")


def test_only_one_holds_it_and_the_other_stores_nothing(records, redis):
    assert begin(records, "x").held_s == 0
    redis.set("result-a", '{"status": "PROGRESS"}')
    assert 0 < begin(records, "y").held_s <= LEASE_S
    assert redis.get("result-a") == '{"status": "PROGRESS"}'
    assert not store(records, "y")
    assert not store(records, "")
    assert not renew(records, "y")
    records.release_lease("a", "y")
    assert begin(records, "y").held_s > 0
    assert store(records, "x")
    assert begin(records, "y") is None


def test_what_ran_out_or_was_released_can_be_taken_and_the_former_holder_knows(records, redis):
    begin(records, "x")
    run_out(redis)
    assert begin(records, "y").held_s == 0
    assert not renew(records, "x")
    assert not store(records, "x")
    records.release_lease("a", "y")
    assert begin(records, "z").held_s == 0
    assert store(records, "z")
    record = redis.hgetall(job_key("a"))
    assert not [name for name in record if name.startswith("lease_")]


def test_who_was_late_and_was_not_followed_still_holds_it(records, redis):
    begin(records, "x")
    run_out(redis)
    assert renew(records, "x")
    assert begin(records, "y").held_s > 0
    run_out(redis)
    assert store(records, "x")


def test_a_redis_that_forgot_the_record_has_it_made_again(records, redis, repeated):
    begin(records, "x")
    redis.flushall()
    assert renew(records, "x")
    assert begin(records, "y").held_s > 0
    redis.flushall()
    assert store(records, "x")
    assert repeated == []


def test_a_job_that_ended_has_no_lease(records, repeated):
    begin(records, "x")
    store(records, "x")
    assert not renew(records, "x")
    assert not store(records, "x")  # sent twice, since the first answer was lost
    assert repeated == []


def test_many_are_renewed_in_one_script_each_with_its_own_answer(records, redis):
    for job_id in "abc":
        begin(records, job_id, job_id=job_id)
    run_out(redis, "b")
    begin(records, "y", job_id="b")
    assert records.renew_leases([(job_id, job_id) for job_id in "abc"], 100.0) == [True, False, True]
    left = {job_id: begin(records, "z", job_id=job_id).held_s for job_id in "abc"}
    assert min(left["a"], left["c"]) > LEASE_S >= left["b"]


def test_the_time_under_leases_adds_up(records, redis):
    assert begin(records, "x").leased_s == 0
    redis.hincrbyfloat(job_key("a"), "leased_at", -7)
    renew(records, "x")
    records.release_lease("a", "x")
    assert begin(records, "y").leased_s == pytest.approx(7, abs=1)


def test_a_job_without_lease_is_as_ever(records):
    assert records.begin("a", "result-a", "{}").held_s == 0
    assert store(records, "")


def test_what_was_lost_with_its_process_counts_and_what_was_handed_back_does_not(records, redis):
    assert begin(records, "a").lost == 0
    assert begin(records, "a").lost == 0  # sent twice, since the first answer was lost
    records.release_lease("a", "a")
    assert begin(records, "b").lost == 0
    run_out(redis)
    assert begin(records, "c").lost == 1
    records.release_lease("a", "c", is_lost=True)
    receipt = begin(records, "d")
    assert (receipt.lost, receipt.is_suspect) == (2, True)
    records.release_lease("a", "c", is_lost=True)  # another's by now
    assert begin(records, "d").lost == 2


def test_attempts_alone_count_under_the_lease_only(records):
    begin(records, "x")
    assert records.count_lost_alone("a", "y") is None
    assert records.count_lost_alone("a", "x") == 1
    assert records.count_lost_alone("a", "x") == 2
    assert begin(records, "x").lost_alone == 2
    store(records, "x")
    assert records.count_lost_alone("a", "x") is None


def test_a_job_sent_again_after_its_outcome_expired_is_no_suspect(records, redis):
    begin(records, "x")
    for _ in range(2):
        run_out(redis)
        begin(records, "y")
        records.count_lost_alone("a", "y")
        run_out(redis)
        begin(records, "x")
    store(records, "x")
    redis.delete("result-a")
    receipt = begin(records, "z")
    assert (receipt.lost, receipt.lost_alone, receipt.is_suspect) == (0, 0, False)


def test_a_job_that_another_was_given_is_told_whether_or_not_that_one_is_done(records, redis, repeated):
    begin(records, "x")
    run_out(redis)
    begin(records, "y")
    renew(records, "x")
    assert repeated == ["x"]
    store(records, "y")
    renew(records, "x")
    store(records, "x")
    assert repeated == ["x"] * 3


def test_an_outcome_over_the_lease_repeats_nothing(records, repeated):
    begin(records, "x")
    failure = '{"status": "FAILURE"}'
    assert records.store("a", "result-a", failure, is_outcome=True, over_lease=True)
    assert not renew(records, "x")
    assert not store(records, "x")
    assert repeated == []


def test_its_keeper_renews_all_and_does_its_chore(records, start_keeper):
    chores = threading.Semaphore(0)
    keeper = start_keeper(0.4, chore=chores.release)
    leases = []
    for job_id in "ab":
        asked_at = time.monotonic()
        assert begin(records, job_id * 2, 0.4, job_id).held_s == 0
        leases.append(keeper.take(job_id, job_id * 2, asked_at))
    for _ in range(20):  # 0.05 s apart: longer than the lease
        assert chores.acquire(timeout=10)
    assert all(lease.is_safe for lease in leases)
    assert [keeper.has(job_id) for job_id in "abc"] == [True, True, False]
    for job_id in "ab":
        assert begin(records, "y", 0.4, job_id).held_s > 0
    keeper.release("a", "aa")
    assert begin(records, "y", 0.4, "a").held_s == 0
    assert begin(records, "y", 0.4, "b").held_s > 0
    assert [keeper.has(job_id) for job_id in "ab"] == [False, True]


def test_a_renewal_on_its_way_does_not_take_again_what_is_released(records, redis, start_keeper, monkeypatch):
    keeper = start_keeper(0.4)
    begin(records, "x", 0.4)
    real = records.renew_leases
    asked, may_go_on, renewed = threading.Event(), threading.Event(), threading.Event()

    def slow(*args):
        asked.set()
        may_go_on.wait(10)
        try:
            return real(*args)
        finally:
            renewed.set()

    monkeypatch.setattr(records, "renew_leases", slow)
    keeper.take("a", "x", time.monotonic())
    assert asked.wait(10)
    releasing = threading.Thread(target=keeper.release, args=("a", "x"))
    releasing.start()
    releasing.join(0.1)
    may_go_on.set()
    releasing.join(10)
    assert renewed.wait(10)
    assert not redis.hexists(job_key("a"), "lease_token")


def test_what_is_dropped_runs_out(records, redis, start_keeper):
    keeper = start_keeper(0.2)
    begin(records, "x", 0.2)
    keeper.take("a", "x", time.monotonic())
    keeper.drop("x")
    time.sleep(0.3)
    assert begin(records, "y", 0.2).lost == 1


def test_its_keeper_hears_that_another_has_it_once(records, redis, start_keeper):
    chores = threading.Semaphore(0)
    keeper = start_keeper(0.4, chore=chores.release)
    lease = keeper.take("a", "x", time.monotonic())
    redis.hset(job_key("a"), mapping={"lease_token": "y", "lease_until": "9e9"})
    for _ in range(20):
        assert chores.acquire(timeout=10)
    assert lease.is_taken_away
    assert not lease.is_safe
    assert lease.is_running_out
    assert not keeper.take_away("x")
    assert not keeper.take_away("unknown")


def test_of_redis_away_the_keeper_makes_nothing(start_keeper, monkeypatch, records, redis):
    chores = threading.Semaphore(0)
    keeper = start_keeper(0.4, chore=chores.release)
    begin(records, "x", 0.4)
    keeper.take("a", "x", time.monotonic())
    real, failed = records.renew_leases, threading.Event()

    def away(*args):
        if failed.is_set():
            return real(*args)
        failed.set()
        raise RedisConnectionError("away")

    monkeypatch.setattr(records, "renew_leases", away)
    for _ in range(20):
        assert chores.acquire(timeout=10)
    assert failed.is_set()
    assert begin(records, "y", 0.4).held_s > 0


def test_without_redis_it_runs_out_here_before_it_does_there():
    now = time.monotonic()
    lease = Lease("a", "x", 10.0, now - 5)
    assert (lease.is_safe, lease.is_running_out) == (True, False)
    lease.renewed(now - 6.1)
    assert (lease.is_safe, lease.is_running_out) == (False, False)
    lease.renewed(now - 8.6)
    assert (lease.is_safe, lease.is_running_out) == (False, True)
