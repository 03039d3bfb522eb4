"""``demo`` and ``up`` as a user runs them: real Redis, real worker, and nothing left running."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from kronos_cli.commands.up import DRAIN_TIMEOUT_S
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from kronos_model.bars.synthetic import candles
from tests.ports import free_port
from tests.waiting import WAIT_S, await_true

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-P", "-m", "kronos_cli"]
MARK = "TEST_ONE_MACHINE"

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="Linux only: run it on Linux")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """No settings of the user's, and a mark by which every process started from here is found.

    Workers compile nothing into the user's folder.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KRONOS_", "FLOWER_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "KRONOS_ENGINE": "torch", MARK: str(tmp_path)}


def running(environment: dict[str, str]) -> list[str]:
    """The command lines of all processes that carry the mark; zombies have none."""
    mark = f"{MARK}={environment[MARK]}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def run_demo(
    folder: Path, environment: dict[str, str], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, "demo", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S
    )


def test_the_demo_makes_a_chart_and_leaves_nothing_running(
    environment: dict[str, str], tmp_path: Path
) -> None:
    # Without compiled kernels it does not wait for them.
    without_gpu = {
        **environment,
        "CUDA_VISIBLE_DEVICES": "",
        "KRONOS_ENGINE": "auto",
        "KRONOS_KERNEL_CACHE": str(tmp_path / "kernels"),
    }
    done = run_demo(tmp_path, without_gpu, "--pred-len", "8", "--samples", "4", "--device", "cuda:7")
    assert done.returncode == 0, done.stderr
    warning = "CUDA device 'cuda:7' requested but CUDA not available. Falling back to CPU."
    assert f"Warning  {warning}" in done.stdout
    assert "Device   cpu, engine torch" in done.stdout
    assert "kronos-tiny" in done.stdout
    assert "for trying the service, not for trading" in done.stdout
    chart = tmp_path / "output" / "forecast.png"
    assert f"Chart    {chart}" in done.stdout
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert running(environment) == []


def test_the_demo_uses_the_given_redis_and_the_users_candles(
    environment: dict[str, str], tmp_path: Path
) -> None:
    sample = candles(seed=5, bars=120).as_dict()
    rows = [",".join(map(str, row)) for row in zip(*sample.values(), strict=True)]
    (tmp_path / "mine.csv").write_text("\n".join([",".join(name.title() for name in sample), *rows]))
    with LocalRedis() as redis:
        theirs = {**environment, "KRONOS_REDIS_URL": redis.url}
        done = run_demo(tmp_path, theirs, "--csv", "mine.csv", "--pred-len", "3", "--output", "mine.png")
        assert done.returncode == 0, done.stderr
    assert "the one at KRONOS_REDIS_URL" in done.stdout
    assert (tmp_path / "mine.png").exists()
    assert running(environment) == []


def test_the_demo_shows_why_the_worker_did_not_start(environment: dict[str, str], tmp_path: Path) -> None:
    done = run_demo(tmp_path, environment, "--model", "no-such-model")
    assert done.returncode == 1
    assert "the worker ended before it was ready" in done.stderr
    assert "no-such-model" in done.stderr
    assert running(environment) == []


def test_an_interrupted_demo_leaves_nothing_running(environment: dict[str, str], tmp_path: Path) -> None:
    command = [*COMMAND, "demo"]
    demo = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    assert demo.stdout.readline().startswith("Redis")
    demo.send_signal(signal.SIGINT)
    assert "Interrupted" in demo.communicate(timeout=WAIT_S)[0]
    assert demo.returncode == 130
    assert running(environment) == []


def test_up_serves_jobs_the_api_and_flower_until_it_is_ended(
    environment: dict[str, str], tmp_path: Path
) -> None:
    ports = [
        "--redis-port",
        str(free_port()),
        "--api-port",
        str(free_port()),
        "--flower-port",
        str(free_port()),
    ]
    log = tmp_path / "up.log"
    command = [*COMMAND, "up", "--workers", "2", *ports]
    environment = {**environment, "KRONOS_THREADS": "1"}
    with log.open("w") as output:
        up = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output)
    try:
        url = await_match(log, r"KRONOS_REDIS_URL=(\S+)")
        password = await_match(log, r"user kronos, password (\S+)")
        for name in ("worker-1", "worker-2"):
            await_match(log, rf"^{name} \| .*(ready\.)")
        with ForecastClient(url) as client:
            result = client.forecast(candles(seed=1, bars=64).as_dict(), pred_len=2, seed=1, timeout_s=WAIT_S)
            assert result.model.id == "kronos-tiny"
            # Celery's line comes before the announcement.
            await_true(lambda: all(worker.is_ready for worker in client.workers()), "all workers are ready")
            workers = [worker for worker in client.workers() if worker.role == "forecast"]
            assert [worker.state for worker in workers] == ["ready", "ready"]
            assert len({worker.node for worker in workers}) == 2
            assert {worker.threads for worker in workers} == {1}
        api = await_match(log, r"^Page: (\S+)")
        await_match(log, r"^api +\| .*(Uvicorn running)")
        with urllib.request.urlopen(f"{api}/v1/readyz", timeout=WAIT_S) as answer:
            assert json.load(answer)["queues"]["cpu"]["ready"] == 2
        with urllib.request.urlopen(api, timeout=WAIT_S) as answer:
            assert "text/html" in answer.headers["Content-Type"]
        flower = f"http://127.0.0.1:{ports[-1]}/api/workers"
        await_match(log, r"flower +\| .*(Visit me)")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(flower)
        credentials = b64encode(f"kronos:{password}".encode()).decode()
        request = urllib.request.Request(flower, headers={"Authorization": f"Basic {credentials}"})
        with urllib.request.urlopen(request) as answer:
            json.load(answer)
    finally:
        up.send_signal(signal.SIGTERM)
        status = up.wait(WAIT_S)
    assert status == 0
    assert running(environment) == []


def test_up_starts_a_killed_redis_and_worker_again_and_also_trains(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """With logs and addresses as JSON, so that what they say can be read; the stack must read them too."""
    ports = ["--redis-port", str(free_port()), "--flower-port", str(free_port()), "--no-api"]
    log, printed = tmp_path / "up.log", tmp_path / "up.json"
    environment = {**environment, "KRONOS_THREADS": "1", "KRONOS_LOG_FORMAT": "json"}
    with log.open("w") as errors, printed.open("w") as output:
        command = [*COMMAND, "up", "--data", "kept", "--json", *ports]
        up = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output, stderr=errors)
    try:
        addresses = json.loads(await_match(printed, r"^(.*)\n"))
        assert addresses["flower_url"] == f"http://127.0.0.1:{ports[3]}"
        assert (addresses["flower_user"], addresses["api_url"]) == ("kronos", None)
        assert addresses["flower_password"]
        assert addresses["model_folder"] == str(tmp_path / "kept" / "models")
        url = addresses["redis_url"]
        assert url.endswith(f"@127.0.0.1:{ports[1]}/0")
        with Redis.from_url(url) as redis:
            redis.set("kept", "yes")
            redis_pid = redis.info("server")["process_id"]
        first = await_match(log, r"^worker +\| .*ready: .*\"pid\": (\d+)")
        await_match(log, r"^finetune +\| .*(ready: role=finetune)")
        variables = Path(f"/proc/{first}/environ").read_bytes().split(b"\0")
        assert f"KRONOS_DRAIN_TIMEOUT_S={DRAIN_TIMEOUT_S}".encode() in variables
        os.kill(redis_pid, signal.SIGKILL)
        await_match(log, r"^redis ended with status -9; it is (started again)")
        with Redis.from_url(url, retry=Retry(ConstantBackoff(0.05), 200)) as redis:
            assert redis.get("kept") == b"yes"
        with ForecastClient(url) as client:
            nodes = {worker.role: worker.node for worker in client.workers()}
            assert nodes["forecast"].startswith(f"forecast-cpu-kronos-tiny-{first}@")
            assert nodes["finetune"].startswith("finetune-cpu-")
            os.kill(int(first), signal.SIGKILL)
            await_match(log, r"^worker ended with status -9; it is (started again)")
            handle = client.submit(candles(seed=1, bars=64).as_dict(), pred_len=2, job_id="after-kill")
            assert handle.wait(WAIT_S).worker.startswith("forecast-cpu-kronos-tiny-")
        line = json.loads(await_match(log, r"^worker +\| (\{.*\"job after-kill: done\".*\})"))
        assert (line["job_id"], line["outcome"], line["device"]) == ("after-kill", "done", "cpu")
        assert line["timings_ms"]["total"] > 0
        assert (tmp_path / "kept" / "data").is_dir()
        assert (tmp_path / "kept" / "models" / ".runs").is_dir()
    finally:
        up.send_signal(signal.SIGTERM)
        status = up.wait(WAIT_S)
    assert status == 0
    logged = [line.partition("| ")[2] for line in log.read_text().splitlines() if line.startswith("worker ")]
    for line in logged:  # but for what Celery writes past all logging as it ends
        assert line in ("", "worker: Warm shutdown (MainProcess)") or json.loads(line)
    assert running(environment) == []


def await_match(log: Path, pattern: str, timeout_s: float = WAIT_S) -> str:
    """The first group of the pattern, once the log has it."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if found := re.search(pattern, log.read_text(), re.MULTILINE):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"no {pattern} in:\n{log.read_text()}")
