"""A real worker whose engine runs out of memory: one job fails, and no neighbour notices."""

import json
from pathlib import Path

import pytest

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode
from tests.faults.accounting import Accounts
from tests.faults.fleet import Fleet, Worker
from tests.waiting import WAIT_S, await_true

GREEDY_SEED = 77
NUM_NEIGHBOURS = 16
PHASES = ("LOOKBACK", "decode", "BARS")


@pytest.fixture
def worker(fleet: Fleet, tmp_path: Path) -> Worker:
    return fleet.start("--include", "tests.faults.faulty_engine", FAULTY_ENGINE=str(tmp_path))


def slots_used(worker: Worker) -> int:
    (status,) = worker.announcements()
    return int(status["sequences_running"]) + int(status["sequences_waiting"])


def test_only_the_job_that_cannot_fit_fails_and_its_slots_are_free(
    accounts: Accounts, client: ForecastClient, worker: Worker, tmp_path: Path
):
    for phase in PHASES:
        (tmp_path / "out-of-memory").write_text(json.dumps({phase: [GREEDY_SEED]}))
        before = accounts.submit_many(client, "long", NUM_NEIGHBOURS // 2)
        greedy = [accounts.submit(client, "wide", seed=GREEDY_SEED) for _ in range(2)]
        after = accounts.submit_many(client, "wide", NUM_NEIGHBOURS // 2)
        accounts.settle(WAIT_S)
        assert phase in (tmp_path / "failed").read_text().split()
        assert {handle.state().name for handle in greedy} == {"FAILURE"}
        assert {handle.state().name for handle in (*before, *after)} == {"SUCCESS"}
        # What fails no longer is as good as any other.
        (tmp_path / "out-of-memory").unlink()
        accounts.submit(client, "wide", seed=GREEDY_SEED).wait(WAIT_S)
        await_true(lambda: slots_used(worker) == 0, "all slots are free")
    assert accounts.codes() == {
        "": len(PHASES) * (NUM_NEIGHBOURS + 1),
        str(ErrorCode.OUT_OF_MEMORY): len(PHASES) * 2,
    }
    assert worker.is_running
    accounts.assert_balanced(allowed={ErrorCode.OUT_OF_MEMORY})
