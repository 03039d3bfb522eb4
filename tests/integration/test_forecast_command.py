"""``kronos forecast`` with a real worker: many files, stopped by Ctrl-C, and gone on with."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest

from kronos_cli.stack.local_redis import LocalRedis
from kronos_model.bars.synthetic import candles
from kronos_model.processes.children import own_environment
from tests import fork_server
from tests.integration.conftest import PACED, StartWorker
from tests.waiting import WAIT_S

NUM_FILES = 12
ASKED = ("--pred-len", "40", "--samples", "16", "--seed", "1", "--in-flight", "3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(NUM_FILES):
        table = pd.DataFrame(candles(seed=number + 1, bars=64).as_dict())
        (tmp_path / "in" / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        path = tmp_path / "in" / f"{number % 2}" / f"file-{number:02}"
        if number % 3:
            table.to_csv(path.with_suffix(".csv"), index=False)
        else:
            table.to_parquet(path.with_suffix(".parquet"))
    (tmp_path / "in" / "bad.csv").write_text("date,open,high,low\n2024-06-18,1,1,1\n")
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def _worker(start_worker: StartWorker) -> None:
    start_worker(*PACED, PACE_S="0.05").wait_until_ready()  # three files take 2 s


def start(redis: LocalRedis, folder: Path, *arguments: str) -> fork_server.Process:
    return fork_server.Process(
        ["kronos_cli", "forecast", *arguments],
        own_environment({"KRONOS_REDIS_URL": redis.url}),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def forecast(redis: LocalRedis, folder: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(redis, folder, *arguments)
    output, errors = process.communicate(timeout=WAIT_S)
    return process.returncode, output, errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_many_files_stopped_half_way_and_gone_on_with(
    redis: LocalRedis, folder: Path, number: signal.Signals
) -> None:
    process = start(redis, folder, "in", "--output", "all.parquet", "--json", *ASKED)
    parts = folder / ".all.parquet.parts"
    deadline = time.monotonic() + WAIT_S
    while len(list(parts.rglob("*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    output, errors = process.communicate(timeout=WAIT_S)
    summary = json.loads(output)
    assert (process.returncode, summary["interrupted"]) == (130, True), (summary, errors)
    assert 3 <= summary["forecast"] < NUM_FILES
    first = pd.read_parquet(folder / "all.parquet").set_index("series")
    assert first.index.nunique() == summary["forecast"]

    status, output, errors = forecast(redis, folder, "in", "--output", "all.parquet", "--json", *ASKED)
    again = json.loads(output)
    assert status == 1  # of bad.csv
    assert (again["unchanged"], again["forecast"]) == (summary["forecast"], NUM_FILES - summary["forecast"])
    assert [entry["code"] for entry in again["failed"]] == ["INVALID_INPUT"]
    whole = pd.read_parquet(folder / "all.parquet").set_index("series")
    assert whole.index.nunique() == NUM_FILES
    assert (whole.groupby(level=0).size() == 40).all()
    name = first.index[0]
    pd.testing.assert_frame_equal(whole.loc[name], first.loc[name])


def test_one_file_is_what_the_client_gets(redis: LocalRedis, client, folder: Path) -> None:
    path = folder / "in" / "1" / "file-01.csv"
    status, output, errors = forecast(
        redis, folder, str(path), "--plot", "--lookback", "50", *ASKED, "--format", "json"
    )
    assert (status, output) == (0, "1 file: 1 forecast. output/forecasts\n"), errors
    kept = json.loads((folder / "output" / "forecasts" / "file-01.json").read_text())
    frame = pd.read_csv(path).tail(50)
    wanted = client.forecast(frame, pred_len=40, sample_count=16, seed=1, timeout_s=WAIT_S).series[0]
    assert kept["mean"]["close"] == pytest.approx(wanted.mean["close"], rel=1e-5)
    assert kept["timestamps"] == list(wanted.timestamps)
    assert (folder / "output" / "forecasts" / "file-01.png").stat().st_size > 10_000
    assert "\x1b" not in output + errors


def test_a_job_that_is_not_done_in_time_fails_its_file_alone(redis: LocalRedis, folder: Path) -> None:
    """On a queue that nobody serves."""
    with LocalRedis() as empty:
        status, output, errors = forecast(
            empty, folder, "in/1/file-01.csv", "in/bad.csv", "--timeout", "0.5", "--output", "out"
        )
    assert status == 1
    assert "No worker serves the queue cpu. Jobs wait until one does; start one with: kronos worker" in errors
    assert "TIMEOUT: in/1/file-01.csv" in errors
    assert "2 files: 0 forecasts, 2 failed" in output
    assert [path.name for path in (folder / "out").iterdir()] == [".kronos-forecasts.jsonl"]
