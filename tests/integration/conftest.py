"""A real Redis and real worker processes, on the checkpoint whose forecasts by the reference are known."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient, ForecastHandle
from kronos_client.redis.connection import connect
from kronos_client.redis.routing import live_workers
from kronos_model.engine.native.compiling import is_warm
from tests import fork_server
from tests.integration.finetune_bench import Bench
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[2]
PARITY = ROOT / "tests" / "data" / "parity" / "a"
CASES = json.loads((PARITY / "cases.json").read_text())["cases"]
# The native engine takes half the time. A process that loads its kernels takes a second longer to start, but
# a fork does not; and no test waits until they are compiled.
IS_NATIVE = fork_server.can_fork(["celery"], os.environ) and is_warm(fork_server.KERNELS)
PARITY_SETTINGS = {
    "KRONOS_MODEL": str(PARITY / "model"),
    "KRONOS_TOKENIZER": str(PARITY / "tokenizer"),
    "KRONOS_MAX_CONTEXT": "128",
    "KRONOS_ENGINE": "auto" if IS_NATIVE else "torch",
    "KRONOS_KERNEL_CACHE": os.environ.get("KRONOS_KERNEL_CACHE", ""),  # not set where pictures are made
}


class WorkerUnderTest:
    """A worker process, its log, and what it announces."""

    def __init__(
        self,
        redis: LocalRedis,
        log: Path,
        command: list[str],
        settings: dict[str, str],
        *,
        may_fork: bool = True,
    ) -> None:
        self.log = log
        self._redis = connect(redis.url)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KRONOS_")}
        self.node = f"worker-{log.stem}@test"
        command = [*command, "--hostname", self.node]
        environment = inherited | PARITY_SETTINGS | {"KRONOS_REDIS_URL": redis.url} | settings
        with log.open("w") as output:
            self.process = fork_server.Process(
                command, environment, may_fork=may_fork, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
            )

    def announcements(self) -> list[dict]:
        workers = live_workers(self._redis)
        return [worker.as_json() for worker in workers if worker.node.startswith(self.node)]

    def wait_until_ready(self) -> "WorkerUnderTest":
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if [worker["state"] for worker in self.announcements()] == ["ready"]:
                return self
            time.sleep(0.05)
        pytest.fail(f"the worker is not ready:\n{self.log.read_text()}")

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                pytest.fail(f"the worker did not stop on SIGTERM:\n{self.log.read_text()}")
        return self.process.returncode


StartWorker = Callable[..., WorkerUnderTest]
PACED = ("--include", "tests.faults.paced_engine")
"""A worker whose engine takes ``PACE_S`` longer for each step, so that jobs last without computing."""


def submit_long_job(client: ForecastClient, candles: pd.DataFrame, **options: Any) -> ForecastHandle:
    """More paths than any worker has slots, for longer than any test waits."""
    return client.submit([candles[:120]] * 16, pred_len=120, sample_count=256, **options)


@pytest.fixture(scope="module", autouse=True)
def draw_one_path(one_path: None) -> None:
    """For all tests of the folder."""


@pytest.fixture(scope="module")
def redis() -> Iterator[LocalRedis]:
    with LocalRedis() as server:
        yield server


@pytest.fixture(scope="module")
def start_worker(redis: LocalRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    """Starts workers on the module's Redis, and ends them with it. ``may_fork=False`` starts as users do."""
    folder = tmp_path_factory.mktemp("workers")
    started: list[WorkerUnderTest] = []

    def start(
        *arguments: str, command: tuple[str, ...] = (), may_fork: bool = True, **settings: str
    ) -> WorkerUnderTest:
        command = command or ("celery", "-A", "worker.app", "worker")
        log = folder / f"{len(started)}.log"
        worker = WorkerUnderTest(redis, log, [*command, *arguments], settings, may_fork=may_fork)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture(scope="module")
def client(redis: LocalRedis) -> Iterator[ForecastClient]:
    with ForecastClient(redis.url) as client:
        yield client


@pytest.fixture
def bench(
    tmp_path: Path, start_worker: StartWorker, client: ForecastClient, redis: LocalRedis
) -> Iterator[Bench]:
    bench = Bench(tmp_path, start_worker, client)
    yield bench
    for worker in bench.workers:  # else they take the jobs of the next test
        worker.process.kill()
        worker.process.wait(WAIT_S)
    Redis.from_url(redis.url).flushall()


@pytest.fixture(scope="session")
def candles() -> pd.DataFrame:
    """The bars that the reference forecast from."""
    return pd.read_csv(PARITY / "candles.csv")
