"""Workers that are killed with jobs in hand: others do their jobs, and none counts as failed."""

import time

import pytest

from kronos_client.celery_app import make_app
from kronos_client.client import ForecastClient
from kronos_client.settings import ClientSettings
from tests.faults.accounting import Accounts
from tests.faults.conftest import SHORT_TIMEOUT_S, Note
from tests.faults.fleet import Fleet, Worker
from tests.faults.redis_under_fault import RedisUnderFault
from tests.waiting import WAIT_S, await_true

NUM_IN_FLIGHT, MIN_FRESH = 32, 12
NUM_QUEUED, NUM_QUEUED_SHORT = 100, 20
NUM_KILLS, NUM_SHORT = 5, 2
BATCH = 64
ROOM = {"KRONOS_MAX_JOBS": str(NUM_IN_FLIGHT), "KRONOS_MAX_SLOTS": str(NUM_IN_FLIGHT)}
PACE_S, LONG_PACE_S = "0.06", "0.2"
"""Slow enough that few jobs end while the queue fills, which is longer in a long test."""


def num_queued(redis: RedisUnderFault) -> int:
    return sum(redis.queued().values())


@pytest.mark.parametrize(
    "settings",
    [{"KRONOS_VISIBILITY_TIMEOUT_S": str(SHORT_TIMEOUT_S)}, {"KRONOS_VISIBILITY_TIMEOUT_S": ""}],
    ids=["short", "default"],
)
def test_kills_of_a_busy_worker_cost_no_job(
    fleet: Fleet,
    redis: RedisUnderFault,
    accounts: Accounts,
    client: ForecastClient,
    at_length: bool,
    note: Note,
    settings: dict[str, str],
):
    if not settings["KRONOS_VISIBILITY_TIMEOUT_S"] and not at_length:
        pytest.skip("takes long: ./kronos test --faults")
    settings = settings | ROOM | {"PACE_S": LONG_PACE_S if at_length else PACE_S}
    for worker in [fleet.begin(**settings) for _ in range(2)]:
        worker.wait_until_ready()
    recoveries_s = []
    for _ in range(NUM_KILLS if at_length else NUM_SHORT):
        for worker in fleet.running:
            worker.wait_until_ready()
        num_waiting = NUM_QUEUED if at_length else NUM_QUEUED_SHORT
        victim, fresh = await_full(fleet, redis, accounts, client, num_waiting)
        victim.kill()
        killed_at = time.monotonic()
        fleet.begin(**settings)
        recoveries_s.append(accounts.await_restart(fresh, killed_at))
    note("begun again after s", recoveries_s)
    accounts.assert_balanced(timeout_s=2 * WAIT_S)
    note("jobs", len(accounts.accepted))


def await_full(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient, num_waiting: int
) -> tuple[Worker, set[str]]:
    """Wait until a worker has at least half of what it takes, most for the first time, and more is queued.

    Returns it with the jobs that no process died with before. Others are suspects, which run one at a time.
    """
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        accounts.submit_many(client, "long", max(0, num_waiting + NUM_IN_FLIGHT // 2 - num_queued(redis)))
        for worker in fleet.running:
            held = accounts.in_hand(worker.node)
            fresh = held - accounts.lost_before(held)
            if (
                len(held) >= NUM_IN_FLIGHT // 2
                and len(fresh) >= MIN_FRESH
                and num_queued(redis) >= num_waiting
            ):
                return worker, fresh
        time.sleep(0.05)
    held = {worker.node: accounts.in_hand(worker.node) for worker in fleet.running}
    found = {node: (len(jobs), len(jobs - accounts.lost_before(jobs))) for node, jobs in held.items()}
    raise AssertionError(
        f"wanted {NUM_IN_FLIGHT // 2} jobs in hand, {MIN_FRESH} of them for the first time, and "
        f"{num_waiting} in the queue; there are {found} and {num_queued(redis)}\n{fleet.logs()}"
    )


@pytest.mark.parametrize("moment", ["taken", "begun", "ended"])
def test_a_kill_amid_a_backlog_that_is_taken_in_batches_costs_no_job(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient, moment: str
):
    room = {"KRONOS_MAX_JOBS": str(BATCH), "KRONOS_MAX_SLOTS": str(BATCH), "PACE_S": PACE_S}
    accounts.submit_many(client, "small", 2 * BATCH)
    victim = fleet.begin(**room)
    reached = {
        "taken": lambda: max(redis.held().values(), default=0) >= BATCH // 2,
        "begun": lambda: len(accounts.in_hand(victim.node)) >= BATCH // 2,
        "ended": lambda: len(accounts.ended()) >= 1,
    }
    await_true(reached[moment], f"jobs are {moment}")
    victim.kill()
    assert accounts.open()
    fleet.start(**room)
    accounts.assert_balanced()


def test_kills_cost_no_job_if_a_worker_serves_another_queue(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient
):
    control = make_app(ClientSettings.model_construct().with_redis_url(redis.url)).control
    victim = fleet.start(KRONOS_MAX_JOBS="6", KRONOS_MAX_SLOTS="6")
    # A worker that does not listen for control commands yet misses one.
    await_true(lambda: control.add_consumer("gpu", destination=[victim.node], reply=True, timeout=2))
    accounts.submit_many(client, "long", 6)
    await_true(lambda: len(accounts.in_hand(victim.node)) == 6, "all jobs are in hand")
    victim.kill()
    fleet.start()
    accounts.assert_balanced()
