"""Schemathesis finds no fault with requests made from the app's description, on a real worker."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kronos_cli.stack.local_redis import LocalRedis
from tests.api_process import ApiUnderTest
from tests.integration.conftest import StartWorker, redis, start_worker  # noqa: F401


@pytest.fixture
def address(redis: LocalRedis, start_worker: StartWorker, tmp_path: Path):  # noqa: F811
    start_worker().wait_until_ready()
    settings = {
        "KRONOS_DATA_FOLDER": str(tmp_path / "data"),
        "KRONOS_MODEL_FOLDER": str(tmp_path / "models"),
        "KRONOS_API_WAIT_S": "5",
    }
    api = ApiUnderTest(redis.url, tmp_path / "api.log", settings)
    yield api.url.rstrip("/")
    assert api.stop() in (0, -signal.SIGTERM)
    assert "Traceback" not in api.log.read_text()


@pytest.mark.parametrize(
    ("phases", "num_examples"),
    [
        ("examples,fuzzing", 3),
        # Every boundary of every parameter, which is most of the time.
        pytest.param("examples,coverage,fuzzing", 10, marks=pytest.mark.at_length),
    ],
)
def test_schemathesis_finds_no_fault(address: str, tmp_path: Path, phases: str, num_examples: int):
    # The streams of jobs that no worker takes never end, and it would read each for 10 s.
    (tmp_path / "schemathesis.toml").write_text("max-stream-events = 1\n")
    found = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("st")), "run", f"{address}/v1/openapi.json"),
            *("--max-examples", str(num_examples), "--generation-deterministic", "--continue-on-failure"),
            *("--phases", phases, "--suppress-health-check", "all"),
            # It has the parameters of /v1/forecasts/file, and each request that it takes starts a process.
            *("--exclude-path", "/v1/candles"),
            # A request of the right form may still be invalid, such as a high below a low.
            *("--exclude-checks", "positive_data_acceptance"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
