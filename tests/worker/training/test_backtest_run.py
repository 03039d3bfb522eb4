"""A backtest as a job on its worker, through the fake client: its report, stops, errors and files."""

import hashlib
import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kronos_client.aio import AsyncForecastClient
from kronos_client.backtesting import reporting
from kronos_client.backtesting.store import FILE
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.worker_status import AnyWorkerStatus
from kronos_client.core.stored import LOST
from kronos_client.redis.job_store import Receipt
from kronos_client.redis.message import fingerprint
from kronos_client.testing import FakeAsyncForecastClient, FakeForecastClient, fake_worker
from kronos_model.evaluation.report import WindowBatch
from tests.kronos_client.backtesting.test_run import CANDLES, info
from worker.process import RetryLater
from worker.training import backtest_run
from worker.training.backtest_run import BacktestJobRun
from worker.training.finetune_process import FinetuneProcess
from worker.training.long_run import MAX_STARTS_AT_SAVE

JOB = {"data": {"path": "a.csv"}, "lookback": 40, "horizon": 5, "windows": 12, "samples": 8}
NUM_JOBS = 3


class Killed(BaseException):
    pass


class Client(FakeForecastClient):
    """Calls ``on_job`` before each job is accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.on_job: Any = lambda: None
        enqueue = self._memory.enqueue

        def send(jobs: Any) -> Any:
            for _ in jobs:
                self.on_job()
            return enqueue(jobs)

        self._memory.enqueue = send  # type: ignore[method-assign]


def digest(batches: Iterable[WindowBatch], *_: Any, bootstrap_losses: Any, **__: Any) -> dict[str, Any]:
    """In place of scores, which take longer than all else: the same for the same forecasts."""
    held = list(batches)
    content = [[one.past.tolist(), *(each.tolist() for each in one.samples.values())] for one in held]
    found = hashlib.sha256(repr(content).encode()).hexdigest()
    number = sum(len(one.past) for one in held)
    bootstrap_losses.append(np.zeros(number))
    return {
        "num_windows": number,
        "digest": found,
        "models": {name: {"verdict": []} for name in held[0].samples},
    }


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reporting, "write_page", lambda path, *_: path.write_text("page"))
    monkeypatch.setattr(reporting, "make_report", digest)
    monkeypatch.setattr(backtest_run, "WORKER_POLL_S", 0.0)
    with Client() as client:
        monkeypatch.setattr(
            backtest_run, "AsyncForecastClient", lambda settings: FakeAsyncForecastClient(client)
        )
        yield client


@pytest.fixture
def process(settings, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    CANDLES["a"].to_csv(folder / "a.csv")
    settings = settings.model_copy(update={"model_folder": tmp_path / "models", "data_folder": folder})
    return FinetuneProcess(settings, "f@host", {"device": "cpu", "warning": None, "description": {}})


def a_run(process: FinetuneProcess, job_id: str = "job", **fields: Any) -> BacktestJobRun:
    now = time.time()
    payload = {name: value for name, value in (JOB | fields).items() if value is not None}
    receipt = Receipt(now, now, False)
    return BacktestJobRun(process, job_id, payload, fingerprint(payload), receipt, "cpu.finetune", math.inf)


def go(run: BacktestJobRun, claim: Any = None) -> dict[str, Any]:
    return run.run(claim or SimpleNamespace(is_safe=True, is_running_out=False))


def output(process: FinetuneProcess, job_id: str = "job") -> Path:
    return a_run(process, job_id)._folder.run


def model_worker(lookback: int) -> AnyWorkerStatus:
    counts = {"jobs": 0, "slots": 8, "running": 0, "waiting": 0}
    model = {"id": "own", "revision": None, "state": "ready", "max_context": 512, "lookback": lookback}
    return fake_worker(models=(model | counts,), model=info("own"))


def refusal(run: BacktestJobRun) -> JobError:
    with pytest.raises(JobError) as refused:
        go(run)
    return refused.value


def test_a_result_has_the_report_and_its_files_stay(process, client):
    fields = {"models": ["one", "two"], "top": 2, "cost_bps": 2.5}
    run = a_run(process, **fields)
    result = go(run)
    assert (result["report"]["asked"]["top"], result["report"]["asked"]["cost_bps"]) == (2, 2.5)
    assert result["report"] == json.loads((output(process) / "report.json").read_text())
    assert (result["queue"], result["worker"], result["num_attempts"]) == ("cpu.finetune", "f@host", 1)
    assert not result["resumed"]
    assert {path.name for path in output(process).iterdir()} == {
        "report.html", "report.json", "forecasts.parquet",
    }  # fmt: skip
    assert {job["priority"] for job in client.jobs.values()} == {"low"}
    assert run.progress["stage"] == "scoring"
    assert (run.progress["forecasts_done"], run.progress["forecasts_total"]) == (24, 24)
    assert process.training.stage == "backtest"
    num_jobs = len(client.jobs)
    assert go(a_run(process, **fields)) == result  # delivered again
    assert len(client.jobs) == num_jobs


@pytest.mark.parametrize("how", ["drained", "claim", "killed"])
def test_a_stopped_backtest_continues_with_the_same_report(process, client, monkeypatch, how):
    whole = go(a_run(process, "whole"))["report"]
    num_jobs = len(client.jobs)
    claim = SimpleNamespace(is_safe=True, is_running_out=False)

    def stop() -> None:
        if len(client.jobs) - num_jobs < 2:
            return
        client.hold = True  # the forecast under way
        if how == "drained":
            process.drain()
        elif how == "claim":
            claim.is_safe, claim.is_running_out = False, True
        else:
            raise Killed

    client.on_job = stop
    with pytest.raises(Killed if how == "killed" else RetryLater):
        go(a_run(process), claim)
    if how != "killed":
        assert client._memory.read(list(client.jobs)[-1]).value.code == ErrorCode.CANCELLED
    if how == "drained":
        assert json.loads((output(process).parent / "job.json").read_text())["num_starts_at_save"] == 0
    assert (output(process) / FILE).exists()
    client.on_job, client.hold = (lambda: None), False
    process.state = "ready"
    result = go(a_run(process))
    assert result["report"] == whole
    assert (result["num_attempts"], result["resumed"]) == (2, True)
    assert len(client.jobs) - num_jobs < 2 * NUM_JOBS


def test_a_cancelled_backtest_cancels_its_forecasts_and_leaves_none(process, client):
    client.hold = True
    run = a_run(process)
    client.on_job = lambda: setattr(run, "is_cancelled", True)
    assert refusal(run).code == ErrorCode.CANCELLED
    states = [client._memory.read(job_id) for job_id in client.jobs]
    assert [stored.value.code for stored in states] == [ErrorCode.CANCELLED] * len(states)
    assert states
    assert not (output(process) / FILE).exists()


def test_it_stops_while_it_makes_the_report(process, client, monkeypatch):
    run = a_run(process)

    def report(*args: Any, **kwargs: Any) -> Any:
        run.is_cancelled = True
        return digest(*args, **kwargs)

    monkeypatch.setattr(reporting, "make_report", report)
    assert refusal(run).code == ErrorCode.CANCELLED
    assert not (output(process) / "report.json").exists()


def test_it_waits_for_a_forecast_worker(process, client, monkeypatch):
    run, seen = a_run(process), []

    async def workers(_: AsyncForecastClient) -> list[AnyWorkerStatus]:
        seen.append(run.progress and run.progress["stage"])
        return [fake_worker("cpu.finetune"), *([fake_worker()] if len(seen) > 1 else [])]

    monkeypatch.setattr(AsyncForecastClient, "workers", workers)
    assert go(run)["report"]["num_windows"] == 12
    assert seen == [None, "waiting"]


def test_forecasts_that_fail_are_repeated_once(process, client):
    client.refuse_next(LOST, times=1)
    assert go(a_run(process))["report"]["left_out"]["windows"] == 0
    client.refuse_next(JobError(ErrorCode.MODEL_CAPACITY, "no room"), times=2 * NUM_JOBS)
    refused = refusal(a_run(process, "other"))
    assert (refused.code, "no room" in refused.message) == (ErrorCode.INVALID_INPUT, True)


def test_redis_away_hands_the_job_back(process, client, monkeypatch):
    async def workers(_: AsyncForecastClient) -> None:
        raise JobError(ErrorCode.BROKER_UNREACHABLE, "Redis does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(AsyncForecastClient, "workers", workers)
        for _ in range(MAX_STARTS_AT_SAVE + 1):  # none counts as killed
            with pytest.raises(RetryLater, match="Redis"):
                go(a_run(process))
    assert go(a_run(process))["num_attempts"] == MAX_STARTS_AT_SAVE + 2


def test_a_backtest_that_kills_its_worker_each_time_ends(process, client, monkeypatch):
    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(backtest_run, "read_files", kill)
        for _ in range(MAX_STARTS_AT_SAVE):
            with pytest.raises(Killed):
                go(a_run(process))
    refused = refusal(a_run(process))
    assert (refused.code, refused.field) == (ErrorCode.OUT_OF_MEMORY, "data")


def test_lookbacks_of_models_that_no_worker_has_loaded_are_known(process, client):
    client.live_workers = [model_worker(lookback=100)]
    process.registry.register(
        Path(__file__).parents[3] / "kronos_model" / "bundled" / "kronos-tiny",
        "mine",
        job_id="p",
        fingerprint="f",
        metadata={"max_context": 90, "lookback": 60, "min_lookback": 30},
    )
    report = go(a_run(process, lookback="auto", models=[None, "mine@1", "kronos-tiny"]))["report"]
    assert report["asked"]["lookback"] == 60
    unknown = refusal(a_run(process, "other", lookback="auto", models=["nobody/knows"]))
    assert (unknown.code, unknown.field) == (ErrorCode.MISSING_FIELD, "lookback")


def test_a_lookback_stays_what_it_was_when_the_backtest_began(process, client):
    client.live_workers = [model_worker(lookback=60)]
    client.on_job = lambda: process.drain() if len(client.jobs) > 1 else None
    with pytest.raises(RetryLater):
        go(a_run(process, lookback=None))
    process.state = "ready"
    client.on_job = lambda: None
    client.live_workers = [model_worker(lookback=50)]
    assert go(a_run(process, lookback=None))["report"]["asked"]["lookback"] == 60


def test_inline_candles_give_the_report_of_their_file(process, client):
    frame = CANDLES["a"]
    inline = {"id": "a", "timestamps": [time.isoformat() for time in frame.index]}
    inline |= {name: frame[name].tolist() for name in frame.columns}
    report = go(a_run(process, "inline", data={"instruments": [inline]}))["report"]
    assert report == go(a_run(process))["report"]


def test_errors_name_the_field_and_no_path_of_the_worker(process, client, tmp_path):
    folder = tmp_path / "data" / "folder"
    folder.mkdir()
    CANDLES["b"].to_csv(folder / "b.csv")
    (folder / "other.csv").write_text("a,b\n1,2\n")
    bad_row = "timestamps,open,high,low,close\n2024-01-01,1,2,1,1\n2024-01-02,1,2,x,1\n"
    (tmp_path / "data" / "bad.csv").write_text(bad_row)
    refused = refusal(a_run(process, "1", data={"path": "bad.csv"}))
    assert (refused.code, refused.field) == (ErrorCode.TRAINING_DATA_INVALID, "reading.drop_bad_rows")
    assert str(tmp_path) not in refused.message
    left_out = go(a_run(process, "2", data={"path": ["a.csv", "folder"]}))["report"]["left_out"]
    assert list(left_out["files"]) == ["folder/other.csv"]
    outside = refusal(a_run(process, "3", data={"path": "nothing.csv"}))
    assert (outside.code, outside.field) == (ErrorCode.DATA_NOT_ALLOWED, "data.path")
    short = refusal(a_run(process, "4", lookback=4000))
    assert (short.code, short.field) == (ErrorCode.INVALID_INPUT, "lookback")


def test_candles_that_changed_meanwhile_are_refused(process, client, tmp_path):
    client.on_job = lambda: process.drain() if len(client.jobs) > 1 else None
    with pytest.raises(RetryLater):
        go(a_run(process))
    process.state = "ready"
    CANDLES["b"].to_csv(tmp_path / "data" / "a.csv")
    refused = refusal(a_run(process))
    assert (refused.code, refused.field) == (ErrorCode.INVALID_INPUT, None)
    assert "changed since the backtest began" in refused.message
