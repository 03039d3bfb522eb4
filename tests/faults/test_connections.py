"""Connections that are closed or fall silent: no job is computed twice while its claim lasts."""

import time

import pytest

from kronos_client.client import ForecastClient
from tests.faults.accounting import Accounts
from tests.faults.conftest import Note
from tests.faults.fleet import Fleet
from tests.faults.proxy import FaultyProxy
from tests.faults.redis_under_fault import RedisUnderFault
from tests.waiting import WAIT_S, await_true

CLAIM_S = 20
"""In which a worker finds that the connection it renews by is silent (5 s), and renews by another."""


def test_every_connection_killed_while_busy(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient
):
    for worker in [fleet.begin(KRONOS_VISIBILITY_TIMEOUT_S="6", PACE_S="0.06") for _ in range(2)]:
        worker.wait_until_ready()
    long = accounts.submit(client, "endless", seed=1)
    for _ in range(4):
        for _ in range(8):
            accounts.submit_until_accepted(client, "long")
        await_true(lambda: any(accounts.in_hand(worker.node) for worker in fleet.running), "busy")
        # On a busy machine they may not all have come back since the last kill.
        await_true(lambda: redis.num_connections() >= 4, "connections to kill")
        redis.kill_connections()
        time.sleep(1)
    accounts.assert_balanced()
    assert len(fleet.running) == 2, fleet.logs()
    assert long.wait(WAIT_S).series
    accounts.assert_computed_once()


def test_a_worker_whose_open_connections_fall_silent(
    fleet: Fleet, accounts: Accounts, client: ForecastClient, proxy: FaultyProxy, note: Note
):
    settings = {"KRONOS_VISIBILITY_TIMEOUT_S": str(CLAIM_S), "PACE_S": "0.08"}
    behind = fleet.start(KRONOS_REDIS_URL=proxy.url, **settings)
    accounts.submit_many(client, "endless", 2)
    await_true(lambda: len(accounts.in_hand(behind.node)) == 2, "it has the jobs")
    fleet.start(**settings)
    assert proxy.silence_open_connections() > 1
    silent_at = time.monotonic()
    accounts.submit_many(client, "small", 20)
    accounts.assert_balanced()
    note("all ended after s", time.monotonic() - silent_at)
    assert len(fleet.running) == 2, fleet.logs()
    accounts.assert_computed_once()


@pytest.mark.at_length
def test_a_worker_that_is_cut_off_for_longer_than_its_claim(
    fleet: Fleet, accounts: Accounts, client: ForecastClient, proxy: FaultyProxy
):
    """Another worker takes its jobs; when it is back it finds them taken, and stores nothing."""
    behind = fleet.start(KRONOS_REDIS_URL=proxy.url, PACE_S="0.08")
    accounts.submit_many(client, "endless", 1)
    accounts.submit_many(client, "long", 4)
    await_true(lambda: len(accounts.in_hand(behind.node)) == 5, "it has the jobs")
    proxy.is_silent = True
    fleet.start()
    accounts.settle()
    proxy.is_silent = False
    again = accounts.submit_many(client, "small", 20)
    assert all(handle.wait(WAIT_S).series for handle in again)
    accounts.assert_balanced(may_repeat=True)
    assert fleet.num_repeated() == 5
    assert len(fleet.running) == 2, fleet.logs()
