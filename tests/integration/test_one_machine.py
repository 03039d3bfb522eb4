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
from tests import fork_server
from tests.ports import free_port
from tests.processes import marked
from tests.waiting import WAIT_S, await_true

ROOT = Path(__file__).resolve().parents[2]
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
    """The command lines of all processes that carry the mark."""
    return list(marked(MARK, environment[MARK]).values())


def run_demo(
    folder: Path, environment: dict[str, str], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    return fork_server.run(["kronos_cli", "demo", *arguments], environment, folder)


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
    options = ["--pred-len", "8", "--samples", "4", "--device", "cuda:7"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kronos_cli", "demo", *options],
        cwd=tmp_path, env=without_gpu, capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
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
    demo = fork_server.Process(
        ["kronos_cli", "demo"], environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    assert demo.stdout.readline().startswith("Redis")
    demo.send_signal(signal.SIGINT)
    assert "Interrupted" in demo.communicate(timeout=WAIT_S)[0]
    assert demo.returncode == 130
    assert running(environment) == []


def test_up_serves_all_starts_what_is_killed_again_and_leaves_nothing_running(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """With logs and addresses as JSON, so that what they say can be read; the stack must read them too."""
    redis_port, api_port, flower_port = (str(free_port()) for _ in range(3))
    ports = ["--redis-port", redis_port, "--api-port", api_port, "--flower-port", flower_port]
    log, printed = tmp_path / "up.log", tmp_path / "up.json"
    environment = {**environment, "KRONOS_THREADS": "1", "KRONOS_LOG_FORMAT": "json"}
    with log.open("w") as errors, printed.open("w") as output:
        command = ["kronos_cli", "up", "--workers", "2", "--data", "kept", "--json", *ports]
        up = fork_server.Process(command, environment, cwd=tmp_path, stdout=output, stderr=errors)
    try:
        addresses = json.loads(await_match(printed, r"^(.*)\n"))
        assert addresses["model_folder"] == str(tmp_path / "kept" / "models")
        url = addresses["redis_url"]
        assert url.endswith(f"@127.0.0.1:{redis_port}/0")
        first = await_match(log, r"^worker-1 +\| .*ready: .*\"pid\": (\d+)")
        await_match(log, r"^worker-2 +\| .*(ready: role=forecast)")
        await_match(log, r"^finetune +\| .*(ready: role=finetune)")
        with ForecastClient(url) as client:
            result = client.forecast(candles(seed=1, bars=64).as_dict(), pred_len=2, seed=1, timeout_s=WAIT_S)
            assert result.model.id == "kronos-tiny"
            workers = [worker for worker in client.workers() if worker.role == "forecast"]
            assert [(worker.state, worker.threads) for worker in workers] == [("ready", 1)] * 2
            (trainer,) = (worker.node for worker in client.workers() if worker.role == "finetune")
        assert len({worker.node for worker in workers}) == 2
        assert any(worker.node.startswith(f"forecast-cpu-kronos-tiny-{first}@") for worker in workers)
        assert trainer.startswith("finetune-cpu-")
        assert_api_serves(addresses["api_url"])
        assert addresses["flower_url"] == f"http://127.0.0.1:{flower_port}"
        assert_flower_asks_for(log, *(addresses[f"flower_{name}"] for name in ("url", "user", "password")))
        variables = Path(f"/proc/{first}/environ").read_bytes().split(b"\0")
        assert f"KRONOS_DRAIN_TIMEOUT_S={DRAIN_TIMEOUT_S}".encode() in variables
        with Redis.from_url(url) as redis:
            redis.set("kept", "yes")
            # While it syncs, Redis may put a write off for up to 2 s, and its answer does not wait for that.
            await_true(lambda: not redis.info("persistence")["aof_buffer_length"], "it is in the file")
            os.kill(redis.info("server")["process_id"], signal.SIGKILL)
        await_match(log, r"^redis ended with status -9; it is (started again)")
        with Redis.from_url(url, retry=Retry(ConstantBackoff(0.05), 200)) as redis:
            assert redis.get("kept") == b"yes"
        os.kill(int(first), signal.SIGKILL)
        await_match(log, r"^worker-1 ended with status -9; it is (started again)")
        with ForecastClient(url) as client:
            handle = client.submit(candles(seed=1, bars=64).as_dict(), pred_len=2, job_id="after-kill")
            assert handle.wait(WAIT_S).worker.startswith("forecast-cpu-kronos-tiny-")
        line = json.loads(await_match(log, r"^worker-\d +\| (\{.*\"job after-kill: done\".*\})"))
        assert (line["job_id"], line["outcome"], line["device"]) == ("after-kill", "done", "cpu")
        assert line["timings_ms"]["total"] > 0
        assert (tmp_path / "kept" / "data").is_dir()
        assert (tmp_path / "kept" / "models" / ".runs").is_dir()
    finally:
        up.send_signal(signal.SIGTERM)
        status = up.wait(WAIT_S)
    assert status == 0
    logged = [line.partition("| ")[2] for line in log.read_text().splitlines() if line.startswith("worker-")]
    for line in logged:  # but for what Celery writes past all logging as it ends
        assert line in ("", "worker: Warm shutdown (MainProcess)") or json.loads(line)
    assert running(environment) == []


def assert_api_serves(url: str) -> None:
    def num_ready() -> int:
        with urllib.request.urlopen(f"{url}/v1/readyz", timeout=WAIT_S) as answer:
            return int(json.load(answer)["queues"]["cpu"]["ready"])

    await_true(lambda: num_ready() == 2, "both workers are ready over HTTP")
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        assert "text/html" in answer.headers["Content-Type"]


def assert_flower_asks_for(log: Path, url: str, user: str, password: str) -> None:
    await_match(log, r"flower +\| .*(Visit me)")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{url}/api/workers")
    credentials = b64encode(f"{user}:{password}".encode()).decode()
    request = urllib.request.Request(f"{url}/api/workers", headers={"Authorization": f"Basic {credentials}"})
    with urllib.request.urlopen(request) as answer:
        json.load(answer)


def await_match(log: Path, pattern: str, timeout_s: float = WAIT_S) -> str:
    """The first group of the pattern, once the log has it."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if found := re.search(pattern, log.read_text(), re.MULTILINE):
            return found[1]
        time.sleep(0.05)
    last = "\n".join(line[:200] for line in log.read_text().splitlines()[-25:])
    raise AssertionError(f"no {pattern} in:\n{last}")
