"""A real Redis that refuses: busy with another app's script, by its ACL, without a snapshot, or full.

Workers keep what they computed, store it as soon as Redis takes it, and none ends.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from redis import Redis

from kronos_client.client import ForecastClient
from kronos_client.redis.routing import live_workers
from tests.faults.accounting import Accounts
from tests.faults.conftest import Note
from tests.faults.fleet import Fleet
from tests.faults.redis_under_fault import RedisUnderFault
from tests.waiting import await_true

LOOP = """
local began = redis.call('TIME')
repeat
    local now = redis.call('TIME')
until now[1] - began[1] + (now[2] - began[2]) / 1000000 > tonumber(ARGV[1])
"""
USER, PASSWORD = "app", "s3cretword"


def set_rights(redis: RedisUnderFault, *, may_store: bool) -> None:
    """Give the workers' user all rights, or all but those on results."""
    keys = ["*"] if may_store else ["kronos*", "cpu*", "gpu*", "_kombu*", "celeryev*", "*pidbox*"]
    options = {"enabled": True, "reset": True, "passwords": [f"+{PASSWORD}"], "categories": ["+@all"]}
    redis.connection.acl_setuser(USER, **options, keys=keys, channels=["*"])


def two_workers(fleet: Fleet, redis: RedisUnderFault, at_length: bool, **settings: str) -> None:
    """Workers with a user of their own. At length their claims last as long as they do by default."""
    set_rights(redis, may_store=True)
    place = redis.url.rpartition("@")[2]
    settings |= {"KRONOS_REDIS_URL": f"redis://{USER}:{PASSWORD}@{place}"}
    if at_length:
        settings["KRONOS_VISIBILITY_TIMEOUT_S"] = "60"
    for worker in [fleet.begin(**settings) for _ in range(2)]:
        worker.wait_until_ready()


def assert_all_ended_well(accounts: Accounts, fleet: Fleet, num_workers: int = 2) -> None:
    accounts.assert_balanced(may_repeat=True)
    assert set(accounts.codes()) == {""}
    assert len(fleet.running) == num_workers, fleet.logs()


def test_another_apps_script_keeps_redis_busy(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient, at_length: bool
) -> None:
    two_workers(fleet, redis, at_length)
    if not at_length:
        redis.connection.config_set("lua-time-limit", 100)  # by default others wait for 5 s
    accounts.submit_many(client, "long", 160 if at_length else 40)
    for _ in range(2):
        await_true(lambda: accounts.ended(), "jobs run")
        with Redis.from_url(redis.url, socket_timeout=60) as foreign:
            foreign.eval(LOOP, 0, 12 if at_length else 1.5)
        time.sleep(1)
    assert_all_ended_well(accounts, fleet)


def test_an_acl_that_refuses_results(
    fleet: Fleet,
    redis: RedisUnderFault,
    accounts: Accounts,
    client: ForecastClient,
    at_length: bool,
) -> None:
    two_workers(fleet, redis, at_length)
    accounts.submit_many(client, "small", 140 if at_length else 20)
    await_true(accounts.ended, "jobs run")
    set_rights(redis, may_store=False)
    accounts.submit_many(client, "small", 20)
    time.sleep(15 if at_length else 0)

    def problems() -> list[str]:
        return [str(worker.problem) for worker in live_workers(redis.connection) if not worker.is_ready]

    await_true(lambda: len(problems()) == 2, "both are announced as not ready")
    assert all("deploy/redis-users.acl" in problem for problem in problems())
    set_rights(redis, may_store=True)
    assert_all_ended_well(accounts, fleet)
    logs = [worker.log.read_text() for worker in fleet.running]
    assert [log.count("Redis refuses what this worker writes") for log in logs] == [1, 1]
    await_true(lambda: all(worker.is_ready for worker in live_workers(redis.connection)), "ready again")


@contextlib.contextmanager
def without_snapshots(redis: RedisUnderFault) -> Iterator[None]:
    """Redis cannot write its snapshot: a folder has the file's name. Then it refuses all writes."""
    connection = redis.connection
    connection.config_set("save", "3600 1000000")
    file = Path(connection.config_get("dir")["dir"]) / connection.config_get("dbfilename")["dbfilename"]
    file.unlink(missing_ok=True)
    (file / "in the way").mkdir(parents=True)

    def saved(status: str) -> bool:
        info = connection.info("persistence")
        if not info["rdb_bgsave_in_progress"] and info["rdb_last_bgsave_status"] != status:
            connection.bgsave()
        return bool(info["rdb_last_bgsave_status"] == status)

    await_true(lambda: saved("err"), "a snapshot fails")
    try:
        yield
    finally:
        (file / "in the way").rmdir()
        file.rmdir()
        await_true(lambda: saved("ok"), "a snapshot is saved")


def test_a_redis_that_cannot_save_its_snapshot(
    fleet: Fleet,
    redis: RedisUnderFault,
    accounts: Accounts,
    client: ForecastClient,
    at_length: bool,
    note: Note,
) -> None:
    two_workers(fleet, redis, at_length)
    accounts.submit_many(client, "long", 40 if at_length else 20)
    await_true(accounts.ended, "jobs run")
    with without_snapshots(redis):
        redis.kill_connections()  # they connect again meanwhile
        time.sleep(60 if at_length else 4)
    recovered_at = time.monotonic()
    accounts.settle()
    note("all ended after s", time.monotonic() - recovered_at)
    assert_all_ended_well(accounts, fleet)


def test_a_full_redis(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient, at_length: bool
) -> None:
    two_workers(fleet, redis, at_length)
    accounts.submit_many(client, "long", 60 if at_length else 20)
    await_true(accounts.ended, "jobs run")
    with redis.full():
        time.sleep(600 if at_length else 4)
    assert_all_ended_well(accounts, fleet)


def test_workers_that_start_in_a_full_redis_work_off_what_fills_it(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient
) -> None:
    accounts.submit_many(client, "small", 12)
    with redis.full():
        worker = fleet.start()
        accounts.settle()
        redis.kill_connections()
        await_true(lambda: worker.log.read_text().count("Connected to") > 1, "it connects again")
    assert_all_ended_well(accounts, fleet, 1)


def test_a_worker_that_waits_for_redis_ends_on_sigterm(fleet: Fleet, redis: RedisUnderFault) -> None:
    worker = fleet.start()
    set_rights(redis, may_store=True)
    with Redis.from_url(f"redis://{USER}:{PASSWORD}@{redis.url.rpartition('@')[2]}") as other:
        other.acl_setuser("default", enabled=True, reset=True)
        for kind in ("normal", "pubsub"):
            other.client_kill_filter(_type=kind, skipme=True)
    await_true(lambda: "Cannot connect" in worker.log.read_text(), "it tries to connect")
    assert worker.end() == 0


def test_a_worker_ends_on_sigterm_although_redis_refuses_its_outcome(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, client: ForecastClient
) -> None:
    set_rights(redis, may_store=True)
    url = f"redis://{USER}:{PASSWORD}@{redis.url.rpartition('@')[2]}"
    worker = fleet.start(KRONOS_REDIS_URL=url)
    (handle,) = accounts.submit_many(client, "long", 1)
    await_true(lambda: accounts.num_starts(handle.id), "the job runs")
    redis.connection.acl_setuser(USER, enabled=True, commands=["-setex"])
    await_true(lambda: "Redis refuses what this worker writes" in worker.log.read_text(), "it is refused")
    assert worker.end() == 0
    set_rights(redis, may_store=True)
    fleet.start()
    assert_all_ended_well(accounts, fleet, 1)
