"""An engine that hangs ends its worker. Its jobs run elsewhere, and it counts as not ready meanwhile."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kronos_client.client import ForecastClient
from tests.faults.accounting import Accounts
from tests.faults.fleet import Fleet, Worker
from tests.waiting import WAIT_S, await_true
from worker.inference.forced_shutdown import EXIT_STATUS

STEP_TIMEOUT_S = 4

StartFaulty = Callable[..., Worker]


@pytest.fixture
def start_faulty(fleet: Fleet, tmp_path: Path) -> StartFaulty:
    def start(*arguments: str, **settings: str) -> Worker:
        settings = {"KRONOS_STEP_TIMEOUT_S": str(STEP_TIMEOUT_S), "FAULTY_ENGINE": str(tmp_path)} | settings
        return fleet.start("--include", "tests.faults.faulty_engine", *arguments, **settings)

    return start


def hang(tmp_path: Path, accounts: Accounts, client: ForecastClient, count: int) -> list[str]:
    """Have a worker's engine hang, once it is beyond its first step, with so many jobs; their ids."""
    accounts.submit(client, "small").wait(WAIT_S)
    (tmp_path / "hang").touch()
    return [handle.id for handle in accounts.submit_many(client, "small", count)]


def await_hang(tmp_path: Path) -> None:
    await_true(lambda: any(tmp_path.glob("hang-*")), "an engine hangs")


def test_the_worker_ends_at_once_and_another_one_does_its_jobs(
    fleet: Fleet,
    accounts: Accounts,
    client: ForecastClient,
    start_faulty: StartFaulty,
    tmp_path: Path,
):
    hanging = start_faulty()
    job_ids = hang(tmp_path, accounts, client, 8)
    await_hang(tmp_path)
    fleet.start()
    assert hanging.process.wait(WAIT_S) == EXIT_STATUS
    lines = [line for line in hanging.log.read_text().splitlines() if "CRITICAL" in line]
    assert len(lines) == 1
    assert "KRONOS_STEP_TIMEOUT_S" in lines[0]
    listed = re.findall(rf"{re.escape(accounts.name)}-\d+", lines[0])
    assert listed
    assert set(listed) <= set(job_ids)
    accounts.assert_balanced()


@pytest.mark.at_length
def test_while_an_engine_hangs_the_worker_is_not_ready_and_takes_no_more(
    fleet: Fleet, accounts: Accounts, client: ForecastClient, start_faulty: StartFaulty, tmp_path: Path
):
    hanging = start_faulty()
    hang(tmp_path, accounts, client, 3)
    await_hang(tmp_path)
    await_true(lambda: [one["state"] for one in hanging.announcements()] == ["draining"], "it says so")
    accounts.submit_many(client, "small", 5)
    while hanging.is_running:
        assert [one["state"] for one in hanging.announcements()] in ([], ["draining"])
        # One more may have been on its way.
        assert len(accounts.in_hand(hanging.node)) <= 3 + 1
        time.sleep(0.05)
    fleet.start()
    accounts.assert_balanced()


def test_an_idle_worker_does_not_hang_nor_does_one_that_computes_for_long(
    accounts: Accounts, client: ForecastClient, start_faulty: StartFaulty
):
    worker = start_faulty(KRONOS_STEP_TIMEOUT_S="1")
    accounts.submit(client, "endless")
    time.sleep(2)
    accounts.settle()
    time.sleep(2)
    assert worker.is_running
    assert [one["state"] for one in worker.announcements()] == ["ready"]
    accounts.assert_balanced()
