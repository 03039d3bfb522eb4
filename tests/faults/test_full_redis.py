"""A Redis that is full, forgets results early, or is emptied: coded errors, and workers that go on."""

import threading
import time

import pytest

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import job_key
from tests.faults.accounting import RESULT_PREFIX, Accounts
from tests.faults.conftest import MakeClient, Note
from tests.faults.fleet import Fleet
from tests.faults.redis_under_fault import RedisUnderFault
from tests.waiting import WAIT_S, await_true

WHEN_FULL = {ErrorCode.BROKER_UNREACHABLE, ErrorCode.ENQUEUE_UNCERTAIN}


def test_a_refusal_of_a_full_redis_is_a_coded_error(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient
):
    worker = fleet.start()
    with redis.full():
        with pytest.raises(JobError) as refused:
            client.submit(candles_of(accounts), pred_len=3, job_id="refused")
        assert refused.value.code in WHEN_FULL
        assert refused.value.__cause__ is not None
        time.sleep(2)
        assert worker.is_running
    accounts.submit_many(client, "small", 5)
    handle = client.submit(candles_of(accounts), pred_len=3, job_id="refused")
    accounts.count("refused")
    assert handle.wait(WAIT_S).series
    accounts.assert_balanced()


def candles_of(accounts: Accounts):
    return accounts.candles[:40]


def test_workers_outlive_a_full_redis_while_they_take_and_store(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient, at_length: bool
):
    workers = [fleet.begin(KRONOS_MAX_JOBS="4", KRONOS_VISIBILITY_TIMEOUT_S="5") for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()
    for _ in range(3 if at_length else 1):
        accounts.submit_many(client, "long", 40)
        await_true(lambda: all(accounts.in_hand(worker.node) for worker in workers), "both are busy")
        with redis.full():
            redis.kill_connections()  # they connect again while it is full
            time.sleep(3)
    accounts.settle()
    assert len(fleet.running) == 2, fleet.logs()
    accounts.assert_balanced()


def test_a_result_that_expired_before_it_was_read(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, make_client: MakeClient
):
    fleet.start(KRONOS_RESULT_TTL_S="1")
    client = make_client(result_ttl_s=1)
    handle = accounts.submit(client, "small")
    accounts.settle()
    await_true(lambda: not redis.connection.exists(f"{RESULT_PREFIX}{handle.id}"), "it expires")
    await_true(lambda: code_of(handle) == ErrorCode.RESULT_EXPIRED, "the client says so")
    # The same id may be used again.
    again = accounts.submit(client, "small", job_id=handle.id)
    assert again.wait(WAIT_S).series


def code_of(handle, timeout_s: float = 0.2) -> str:
    try:
        handle.wait(timeout_s)
    except JobError as error:
        return error.code
    return ""


def test_a_redis_that_is_emptied_under_load(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient, note: Note
):
    workers = [fleet.begin(KRONOS_MAX_JOBS="4") for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()
    handles = accounts.submit_many(client, "long", 80)
    codes: dict[str, str] = {}
    waiters = [
        threading.Thread(target=lambda one=one: codes.update({one.id: code_of(one, WAIT_S)}), daemon=True)
        for one in handles
    ]
    for waiter in waiters:
        waiter.start()
    await_true(lambda: all(accounts.in_hand(worker.node) for worker in workers), "both are busy")
    redis.connection.flushall()
    flushed_at = time.monotonic()
    for waiter in waiters:
        waiter.join()
    note("reported after s", time.monotonic() - flushed_at)
    note("ended as", {code: list(codes.values()).count(code) for code in sorted(set(codes.values()))})
    known = {"", ErrorCode.LOST}
    unknown = [one.id for one in handles if codes.get(one.id) not in known]
    records = {job_id: redis.connection.hgetall(job_key(job_id)) for job_id in unknown}
    assert unknown == [], f"{records}, {accounts.metas(unknown)}, {redis.queued()}, {redis.held()}"
    assert ErrorCode.LOST in codes.values()
    assert len(fleet.running) == 2, fleet.logs()
    # What was running may still store its outcome; what is new is served as ever.
    accounts.accepted.clear()
    accounts.submit_many(client, "small", 40)
    accounts.assert_balanced(may_repeat=True)
