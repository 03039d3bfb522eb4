"""The scripts of docs/use/clients.md, each run as it stands there against a real worker."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.testing import FakeForecastClient
from kronos_model.bars.synthetic import candles
from tests.api_process import ApiUnderTest
from tests.integration.conftest import ROOT, StartWorker, WorkerUnderTest
from tests.waiting import WAIT_S

PAGE = ROOT / "docs" / "use" / "clients.md"
FENCE = re.compile(r"^```(?P<language>\w+) (?P<name>\S+)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
SCRIPTS = {match["name"]: match["text"] for match in FENCE.finditer(PAGE.read_text())}
PRINTED = {
    "forecast_client.py": ("cpu None", "SUCCESS", "NON_POSITIVE_PRICE series.0.close {'row': 0}"),
    "forecast_many.py": ("40 forecasts",),
    "predict_df.py": ("target_name  predictions",),
    "async_client.py": ("SUCCESS", "name-19 cpu"),
    "plain_celery.py": ("BAD_VALUE pred_len",),
    "celery_control.py": ("flagged as revoked", "{'ok': 'pong'}"),
}
API_ADDRESS = "http://127.0.0.1:8000"
NODE_FOLDER = Path(__file__).parent / "node"
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerUnderTest:
    return start_worker().wait_until_ready()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of the page's scripts lie."""
    folder = tmp_path_factory.mktemp("scripts")
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    return folder


def run(command: list[str], url: str, **environment: str) -> str:
    """What a command prints, run at the repository's root."""
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"KRONOS_REDIS_URL": url, "PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("script", PRINTED)
def test_a_script_prints_what_it_should(worker, redis, folder, script, monkeypatch, capsys):
    if "celery" in script:  # its app would become that of the other tests
        printed = run([sys.executable, str(folder / script)], redis.url)
    else:
        monkeypatch.setenv("KRONOS_REDIS_URL", redis.url)
        runpy.run_path(str(folder / script), run_name="__main__")
        printed = capsys.readouterr().out
    for text in PRINTED[script]:
        assert text in printed


def test_an_apps_own_test_passes(folder, redis):
    assert "1 passed" in run(
        [sys.executable, "-m", "pytest", "-q", str(folder / "test_my_app.py")], redis.url
    )


def test_a_raw_message_is_answered(worker, redis, folder):
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli is not installed: apt-get install redis-tools")
    url = redis.url.replace("://:", "://default:")  # redis-cli wants a user before the password
    printed = run(["sh", str(folder / "raw_redis.sh")], url)
    assert '"SUCCESS"' in printed
    assert '"id":"AAPL"' in printed


@pytest.fixture(scope="module")
def api(redis: LocalRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an API, started as an operator starts it."""
    api = ApiUnderTest(redis.url, tmp_path_factory.mktemp("api") / "log", {}, ("kronos_cli", "api"))
    yield api.url.rstrip("/")
    api.stop()


def test_curl_gets_a_prediction(worker, api, redis, folder):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed: apt-get install curl")
    asked = SCRIPTS["curl_predict.sh"]
    assert asked.count(API_ADDRESS) == 1
    script = folder / "curl_here.sh"
    script.write_text(asked.replace(API_ADDRESS, api))
    answer = json.loads(run(["sh", str(script)], redis.url))
    assert answer["series_id"] == "AAPL"
    assert [point["timestamp"] for point in answer["prediction"]] == [
        "2024-06-05T00:00:00",
        "2024-06-06T00:00:00",
    ]
    for point in answer["prediction"]:
        assert 0 < point["low"] <= min(point["open"], point["close"])
        assert point["high"] >= max(point["open"], point["close"])
    for name in ("model_version", "tokenizer_version"):
        assert f"`{name}`" in PAGE.read_text()
        assert answer[name]


def test_curl_follows_a_job(worker, api, redis, folder):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed: apt-get install curl")
    script = folder / "curl_job_here.sh"
    script.write_text(SCRIPTS["curl_job.sh"].replace(API_ADDRESS, api))
    events, table = run(["sh", "-e", str(script)], redis.url).split('"series","timestamp"')
    assert events.rstrip().rpartition("event: ")[2].startswith("end")
    assert table.count('"AAPL"') == 3


def test_every_script_of_the_page_is_run():
    """By a name of its own; a block without one is not a script."""
    ran_elsewhere = {
        "test_my_app.py",
        "raw_redis.sh",
        "curl_predict.sh",
        "curl_job.sh",
        "workflow.py",
        "celery_node.cjs",
    }
    assert SCRIPTS.keys() == PRINTED.keys() | ran_elsewhere
    assert PAGE.read_text().count("\n```") == 2 * len(SCRIPTS)


@pytest.fixture(scope="module")
def own_worker(redis: LocalRedis, folder: Path) -> Iterator[None]:
    """A worker of an app that has none of our code."""
    command = ["-m", "celery", "-A", "workflow", "worker", "--queues", "my-app", "--pool", "threads"]
    with (folder / "own-worker.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *command, "--hostname", "own@test"],
            cwd=ROOT,
            env=os.environ | {"KRONOS_REDIS_URL": redis.url, "PYTHONPATH": str(folder)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    yield
    process.terminate()
    process.wait(WAIT_S)


def test_our_task_in_chains_groups_and_chords(worker, own_worker, redis, folder):
    printed = run([sys.executable, str(folder / "workflow.py"), "run"], redis.url)
    closes = json.loads(printed)
    assert len(set(closes)) == 3


@pytest.fixture(scope="module")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """celery-node and what it needs, in the versions of package-lock.json."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js or npm is not installed: apt-get install nodejs npm")
    folder = tmp_path_factory.mktemp("node")
    for file in ("package.json", "package-lock.json"):
        shutil.copy(NODE_FOLDER / file, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("npm cannot install celery-node: run it where an npm registry can be reached")
    return folder / "node_modules"


@pytest.mark.parametrize("protocol", [1, 2])
def test_node_gets_forecasts_and_coded_errors(worker, redis, folder, node_modules, protocol):
    made = 'createClient(url, url, "cpu");'
    assert made in SCRIPTS["celery_node.cjs"]
    script = folder / f"protocol_{protocol}.cjs"
    script.write_text(
        SCRIPTS["celery_node.cjs"].replace(made, f"{made}\nclient.conf.TASK_PROTOCOL = {protocol};")
    )
    printed = run(["node", str(script)], redis.url, NODE_PATH=str(node_modules))
    assert printed.startswith("cpu [")
    assert "BAD_VALUE pred_len" in printed


def test_the_fakes_result_has_the_form_of_a_workers(worker, client):
    """Everything but the numbers."""
    times = pd.date_range("2024-03-28 14:00", periods=60, freq="h", tz="Europe/Berlin", name="date")
    history = pd.DataFrame(candles(seed=1, bars=60).columns, index=times)
    options = {"pred_len": 5, "sample_count": 3, "seed": 7, "paths": True, "device": "cuda", "job_id": "twin"}
    real = client.forecast([history, history], timeout_s=WAIT_S, **options)
    made_up = FakeForecastClient().forecast([history, history], timeout_s=WAIT_S, **options)
    assert form(made_up.model_dump(mode="json")) == form(real.model_dump(mode="json"))
    for one, other in zip(made_up.series, real.series, strict=True):
        assert (one.id, one.timestamps, one.seed) == (other.id, other.timestamps, other.seed)
        assert one.frame().index.equals(pd.date_range(times[-1], periods=6, freq="h", name="timestamps")[1:])
    assert (made_up.device_warning, made_up.warnings) == (real.device_warning, real.warnings)


def form(value: object) -> object:
    """Names, types and lengths; of a model's revisions, which a folder has none of, nothing."""
    if isinstance(value, dict):
        return {name: form(one) for name, one in value.items()}
    if isinstance(value, list):
        return [form(one) for one in value]
    return type(value).__name__
