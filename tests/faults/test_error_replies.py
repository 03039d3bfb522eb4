"""Error replies of Redis to any command of a worker: it goes on by itself, as soon as Redis does."""

import time

from kronos_client.client import ForecastClient
from tests.faults.accounting import Accounts
from tests.faults.conftest import Note
from tests.faults.error_replies import ERRORS
from tests.faults.fleet import Fleet
from tests.faults.proxy import FaultyProxy, Rule
from tests.waiting import await_true


def test_workers_outlive_every_error_of_every_command(
    fleet: Fleet,
    accounts: Accounts,
    client: ForecastClient,
    proxy: FaultyProxy,
    at_length: bool,
    note: Note,
    tmp_path,
):
    workers = [
        fleet.begin(KRONOS_REDIS_URL=proxy.url),
        fleet.begin("--pool", "solo", KRONOS_REDIS_URL=proxy.url),
        fleet.begin(
            KRONOS_REDIS_URL=proxy.url, KRONOS_ROLE="finetune", KRONOS_MODEL_FOLDER=str(tmp_path / "models")
        ),
    ]
    for worker in workers:
        worker.wait_until_ready()
    recoveries_s = []
    for error in ERRORS:
        proxy.rules = [Rule(error)]
        time.sleep(20.0 if at_length else 0.4)
        if at_length:
            recoveries_s.append(recovery_s(proxy, accounts, client))
    recoveries_s.append(recovery_s(proxy, accounts, client))
    note("a new job done after s", recoveries_s)
    assert len(fleet.running) == 3, fleet.logs()
    assert all(worker.announcements() for worker in workers)


def recovery_s(proxy: FaultyProxy, accounts: Accounts, client: ForecastClient) -> float:
    """Seconds until a job is done that is sent as Redis recovers."""
    proxy.rules = []
    handle = accounts.submit(client, "small")
    return await_true(lambda: handle.id in accounts.ended([handle.id]), "a job is done again")
