"""Apps that have none of our code: plain Celery by task name, and Flower's ``send-task``."""

import base64
import contextlib
import json
import os
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from packaging.requirements import Requirement

from kronos_cli.stack.local_redis import LocalRedis
from tests import fork_server
from tests.integration.conftest import CASES, PARITY, ROOT, StartWorker, WorkerUnderTest
from tests.ports import free_port
from tests.waiting import WAIT_S

GREEDY = next(case for case in CASES if case["name"] == "greedy")
PASSWORD = "only-for-this-test"

PLAIN_CELERY = """
import importlib.util, json, sys
from celery import Celery

for absent in ("torch", "pandas", "numpy", "pydantic", "worker", "kronos_model", "kronos_client"):
    assert importlib.util.find_spec(absent) is None, absent
url = sys.argv[1]
app = Celery(broker=url, backend=url)
job = json.load(sys.stdin)
good = app.send_task("kronos.forecast", kwargs={"job": job}, queue="cpu").get(timeout=120)
bad = app.send_task("kronos.forecast", kwargs={"job": {**job, "pred_len": 0}}, queue="cpu")
try:
    bad.get(timeout=120)
    raise SystemExit("a horizon of 0 came back with a forecast")
except Exception as error:
    refused = list(error.args)
json.dump({"good": good, "bad": refused}, sys.stdout)
"""


OUR_CLIENT = """
import importlib.util, json, sys
from kronos_client.client import ForecastClient

for absent in ("torch", "pandas"):
    assert importlib.util.find_spec(absent) is None, absent
job = json.load(sys.stdin)
(series,) = job["series"]
with ForecastClient(sys.argv[1]) as client:
    result = client.forecast(
        series, future_timestamps=series["future_timestamps"], repair=False, timeout_s=120, **job["sampling"]
    )
json.dump(result.model_dump(mode="json"), sys.stdout)
"""


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerUnderTest:
    return start_worker().wait_until_ready()


@pytest.fixture(scope="module")
def job(candles: pd.DataFrame) -> dict:
    """The reference's greedy case as any client would write it, columns as arrays."""
    lookback, pred_len = GREEDY["lookback"], GREEDY["pred_len"]
    past, future = candles[:lookback], candles[lookback : lookback + pred_len]
    series = {name: past[name].tolist() for name in GREEDY["columns"]}
    series |= {"id": "x", "timestamps": past["timestamps"].tolist()}
    series["future_timestamps"] = future["timestamps"].tolist()
    return {
        "schema_version": 1,
        "series": [series],
        "sampling": {"top_k": 1, "top_p": 1.0, "seed": GREEDY["torch_manual_seed"]},
        "output": {"repair": False},
    }


def assert_is_the_reference(result: dict) -> None:
    expected = pd.read_csv(PARITY / "greedy.0.csv")
    for name in GREEDY["columns"]:
        np.testing.assert_allclose(result["series"][0]["mean"][name], expected[name], rtol=1e-5)


def needed_by(*requirements: str) -> set[str]:
    """The distributions that ``pip install`` of these would bring, by this machine's metadata."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        for extra in ("", *requirement.extras):
            key = f"{requirement.name.lower()}[{extra}]"
            if key in found:
                continue
            found.add(key)
            needed = map(Requirement, distribution(requirement.name).requires or [])
            waiting += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {key.partition("[")[0] for key in found}


def link_distributions(folder: Path, *requirements: str) -> Path:
    """Make ``folder`` one for ``sys.path`` that holds these, what they need, and nothing else."""
    for name in needed_by(*requirements):
        for top in {Path(str(file)).parts[0] for file in distribution(name).files or []} - {
            "..",
            "__pycache__",
        }:
            source = Path(str(distribution(name).locate_file(top)))
            if source.exists() and not (folder / top).exists():
                (folder / top).symlink_to(source)
    return folder


def run_isolated(
    script: str, site: Path, folder: Path, url: str, job: dict
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", "-c", script, url],
        input=json.dumps(job),
        env={"PYTHONPATH": str(site), "PATH": os.environ["PATH"]},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_our_client_needs_only_the_declared_dependencies(worker, redis, job, tmp_path):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    site = link_distributions(tmp_path, *declared)
    for package in ("kronos_model", "kronos_client"):
        (site / package).symlink_to(ROOT / package)
    ran = run_isolated(OUR_CLIENT, site, tmp_path, redis.url, job)
    assert ran.returncode == 0, ran.stderr
    assert_is_the_reference(json.loads(ran.stdout))


def test_an_environment_with_only_celery_and_redis_gets_the_reference_forecast(worker, redis, job, tmp_path):
    site = link_distributions(tmp_path, "celery[redis]")
    ran = run_isolated(PLAIN_CELERY, site, tmp_path, redis.url, job)
    assert ran.returncode == 0, ran.stderr
    answers = json.loads(ran.stdout)
    assert_is_the_reference(answers["good"])
    assert answers["bad"][0] == "BAD_VALUE"
    assert answers["bad"][2] == "pred_len"


@pytest.fixture(scope="module")
def flower(redis: LocalRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Flower's address, started as an operator starts it."""
    port = free_port()
    log = tmp_path_factory.mktemp("flower") / "log"
    settings = {"KRONOS_REDIS_URL": redis.url, "KRONOS_FLOWER_PASSWORD": PASSWORD}
    with log.open("w") as output:
        process = fork_server.Process(
            ["kronos_cli", "flower", "--port", str(port)],
            os.environ | settings,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{address}/healthcheck", timeout=2)
                break
            time.sleep(0.1)
        else:
            pytest.fail(f"Flower does not answer:\n{log.read_text()}")
        yield address
    finally:
        process.terminate()
        process.wait(WAIT_S)


def ask(url: str, body: dict | None = None) -> dict:
    token = base64.b64encode(f"kronos:{PASSWORD}".encode()).decode()
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Authorization": f"Basic {token}"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return json.load(answer)


def test_a_job_sent_through_flower_gets_the_reference_forecast(worker, flower, job):
    sent = ask(f"{flower}/api/task/send-task/kronos.forecast", {"kwargs": {"job": job}, "queue": "cpu"})
    deadline = time.monotonic() + WAIT_S
    while (result := ask(f"{flower}/api/task/result/{sent['task-id']}"))["state"] in (
        "PENDING",
        "STARTED",
        "PROGRESS",
    ):
        assert time.monotonic() < deadline, "the job does not end"
        time.sleep(0.1)
    assert result["state"] == "SUCCESS"
    assert_is_the_reference(result["result"])


def test_flower_shows_the_worker_and_asks_for_the_password(worker, flower):
    deadline = time.monotonic() + WAIT_S
    while not (workers := ask(f"{flower}/api/workers?refresh=1")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert worker.node in workers
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{flower}/api/workers", timeout=WAIT_S)
    assert refused.value.code == 401
