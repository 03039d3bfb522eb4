"""Redis behind Sentinel: the primary dies under load, and everything goes on with its replica."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode
from tests.faults.accounting import Accounts
from tests.faults.conftest import MakeClient, Note
from tests.faults.fleet import Fleet
from tests.faults.sentinels import RedisWithSentinels
from tests.faults.test_redis_outages import Feeder, work_again
from tests.integration.test_secured_redis import Certificates, redis_with_tls
from tests.waiting import WAIT_S, await_true

TLS_FILES = {"cert-file": "server.pem", "key-file": "server.key", "ca-cert-file": "ca.pem"}
RECOVERED_WITHIN_S = 10


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisWithSentinels]:
    server = RedisWithSentinels(tmp_path / "redis")
    yield server
    server.stop()


def test_a_primary_killed_under_load(
    fleet: Fleet,
    redis: RedisWithSentinels,
    accounts: Accounts,
    make_client: MakeClient,
    at_length: bool,
    note: Note,
    monkeypatch: pytest.MonkeyPatch,
):
    """With KRONOS_REDIS_MIN_REPLICAS no accepted job is lost."""
    monkeypatch.setenv("KRONOS_REDIS_MIN_REPLICAS", "1")
    for worker in [fleet.begin(KRONOS_REDIS_MIN_REPLICAS="1") for _ in range(2)]:
        worker.wait_until_ready()
    client: ForecastClient = make_client()
    recoveries_s = []
    with Feeder(accounts, make_client()).feeding() as feeder:
        for _ in range(5 if at_length else 1):
            for _ in range(16):  # the replica of the round before may still be loading
                accounts.submit_until_accepted(client, "long")
            redis.kill_primary()
            note("a new primary after s", redis.await_new_primary())
            # Nothing is confirmed until there is a replica again.
            redis.replace()
            recoveries_s.append(work_again(redis, accounts, client))
    note("a new job done after s", recoveries_s)
    assert max(recoveries_s) < RECOVERED_WITHIN_S
    assert len(fleet.running) == 2, fleet.logs()
    assert feeder.codes() <= {ErrorCode.BROKER_UNREACHABLE, ErrorCode.ENQUEUE_UNCERTAIN}
    accounts.assert_balanced(may_repeat=True, may_publish_again=at_length)


def test_a_waiting_client_goes_on_after_a_failover_with_tls(tmp_path: Path, candles: pd.DataFrame):
    binary = redis_with_tls()
    certificates = Certificates(tmp_path)
    certificates.make()
    lines = [f"tls-{name} {certificates[file]}" for name, file in TLS_FILES.items()]
    lines.append("tls-auth-clients no")
    query = f"&tls=true&ssl_ca_certs={certificates['ca.pem']}"
    redis = RedisWithSentinels(tmp_path / "redis", (lines, query), binary)
    fleet = Fleet(redis, tmp_path, KRONOS_VISIBILITY_TIMEOUT_S="3", PACE_S="0.05")
    try:
        fleet.start()
        with ForecastClient(redis.url) as client:
            handle = client.submit(candles[:30], pred_len=60)
            await_true(lambda: handle.state().name != "PENDING", "a worker has the job")
            redis.kill_primary()
            assert len(handle.wait(WAIT_S).series[0].mean["close"]) == 60
        fleet.stop()
    finally:
        fleet.end_all()
        redis.stop()
