"""Error replies of Redis to any command of a worker: it goes on by itself, as soon as Redis does."""

import time

from kronos_client.client import ForecastClient
from tests.faults.accounting import Accounts
from tests.faults.conftest import Note
from tests.faults.error_replies import ERRORS
from tests.faults.fleet import Fleet
from tests.faults.proxy import FaultyProxy, Rule
from tests.faults.redis_under_fault import RedisUnderFault
from tests.waiting import WAIT_S, await_true
from worker.settings import WorkerSettings


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
        fleet.begin(KRONOS_REDIS_URL=proxy.url),
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
    # The job above needed one of them; the others look again within seconds.
    await_true(lambda: all(worker.announcements() for worker in workers), "all workers announce themselves")


def recovery_s(proxy: FaultyProxy, accounts: Accounts, client: ForecastClient) -> float:
    """Seconds until a job is done that is sent as Redis recovers."""
    proxy.rules = []
    handle = accounts.submit(client, "small")
    return await_true(lambda: handle.id in accounts.ended([handle.id]), "a job is done again")


def test_a_changed_password_is_read_from_its_file_without_a_restart(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient, tmp_path, monkeypatch
):
    file = tmp_path / "url"

    def change_to(password: str) -> None:
        redis.connection.acl_setuser(
            "app", enabled=True, reset=True, passwords=[f"+{password}"],
            categories=["+@all"], keys=["*"], channels=["*"],
        )  # fmt: skip
        redis.kill_connections()

    def write(password: str) -> None:
        file.write_text(f"redis://app:{password}@{redis.url.rpartition('@')[2]}")

    change_to("one-s3cret")
    write("one-s3cret")
    workers = [fleet.start(KRONOS_REDIS_URL="", KRONOS_REDIS_URL_FILE=str(file)) for _ in range(2)]
    monkeypatch.setenv("KRONOS_REDIS_URL_FILE", str(file))
    with ForecastClient(settings=WorkerSettings.load()) as app:
        assert accounts.submit(app, "small").wait(WAIT_S).series
        change_to("other-s3cret")
        time.sleep(2)  # all of them are refused
        write("other-s3cret")
        accounts.submit_until_accepted(app, "small")[0].wait(WAIT_S)
    accounts.submit_many(client, "small", 4)
    accounts.assert_balanced(may_repeat=True)
    assert fleet.running == workers
    assert not any(
        word in worker.log.read_text() for worker in workers for word in ("one-s3cret", "other-s3cret")
    )
