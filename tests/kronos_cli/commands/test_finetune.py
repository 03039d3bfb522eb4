"""``kronos finetune``: options, jobs on Redis, output and exit status."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
from click.testing import CliRunner
from redis import Redis

from kronos_cli.commands import finetune as finetune_command
from kronos_cli.main import cli
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import FinetuneHandle, FinetuneState, ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import FinetuneResult
from kronos_client.contract.names import CPU_FINETUNE_QUEUE, PROGRESS_STATE, cancel_key
from kronos_client.contract.schemas import example
from kronos_client.core.handle import JobHandle
from kronos_client.redis.routing import announce
from kronos_client.settings import ClientSettings
from kronos_client.testing import fake_worker
from kronos_model.bars.synthetic import candles
from tests.kronos_client.client_bench import WorkerSide

ROOT = Path(__file__).resolve().parents[2]
NORMAL = f"{CPU_FINETUNE_QUEUE}\x06\x163"
PROGRESS = {
    "stage": "predictor", "epoch": 2, "num_epochs": 10, "validation_loss": 5.0, "warnings": ["few bars"],
}  # fmt: skip


@pytest.fixture
def client(redis: Redis, redis_server: LocalRedis) -> Iterator[ForecastClient]:
    with ForecastClient(redis_server.url) as client:
        yield client


@pytest.fixture
def worker_side(redis_server: LocalRedis) -> WorkerSide:
    return WorkerSide(ClientSettings.model_construct().with_redis_url(redis_server.url))


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "config.yaml"
    file.write_text("data: {lookback: 30, pred_len: 5}\npredictor: {epochs: 2}\n")
    return str(file)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["finetune", *arguments])


def enqueued_job(redis: Redis) -> dict[str, Any]:
    (text,) = redis.lrange(NORMAL, 0, -1)
    job: dict[str, Any] = json.loads(base64.b64decode(json.loads(text)["body"]))[1]["job"]
    return job


def enqueue(client: ForecastClient) -> FinetuneHandle:
    return client.finetune({}, name="mine", data="a.csv")


def end(worker_side: WorkerSide, job_id: str) -> None:
    worker_side.finish(job_id, example("finetune-result"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--watch"], "--watch needs the id"),
        (["--watch", "a", "--cancel", "b"], "give one of them"),
        (["--enqueue", "mine", "--watch", "a"], "give one of them"),
        (["--enqueue", "mine", "--cancel", "a"], "give one of them"),
        (["--watch", "a", "--device", "cpu"], "no further options"),
        (["--cancel", "a", "--config", "x.yaml"], "no further options"),
        (["--priority", "high"], "give --enqueue NAME"),
        (["--inline", "a.csv"], "give --enqueue NAME"),
        (["--no-fallback"], "give --enqueue NAME"),
        (["--enqueue", "mine", "--output", "x"], "--output is not for jobs"),
        (["--enqueue", "mine", "--data", "a", "--inline", "a.csv"], "not both"),
        (["--enqueue", "mine", "--inline", "x/a.csv", "--inline", "y/a.csv"], "the same name"),
        (["--enqueue", "mine", "--priority", "urgent"], "urgent"),
        (["--enqueue", "mine", "--nodes", "2", "--master", "a"], "a job trains on one machine"),
        (["--nodes", "2"], "--nodes and --master need each other"),
        (["--master", "a"], "--nodes and --master need each other"),
        (["--nodes", "1:x", "--master", "a"], "a number or MIN:MAX"),
        (["--nodes", "3:1", "--master", "a"], "a number or MIN:MAX"),
        (["--nodes", "2", "--master", "a..b"], "--master a..b is not known or not reached"),
        (["--nodes", "2", "--master", "127.0.0.1:x"], "--master 127.0.0.1:x is not known or not reached"),
    ],
)
def test_options_that_exclude_each_other_are_usage_errors(arguments: list[str], reason: str) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_training_in_this_process_gets_all_options(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setenv("KRONOS_ENGINE", engine)
    given: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        given.append(arguments)
        return 75

    monkeypatch.setattr("kronos_model.finetuning.__main__.main", main)
    result = run(
        "--config", "c.yaml", "--set", "predictor.epochs=3", "--set", "seed=-1", "--data", "a.csv", "--data",
        "b", "--device", "cpu", "--output", "run",
    )  # fmt: skip

    assert result.exit_code == 75
    assert given == [
        ["--set=predictor.epochs=3", "--set=seed=-1", "--config=c.yaml", "--device=cpu", "--output=run",
         f"--engine={engine}", "--data", "a.csv", "b"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "has_gpu", "processes"),
    [
        (["--processes", "2"], True, "2"),
        (["--nodes", "1:3", "--master", "127.0.0.1"], True, "gpu"),
        (["--nodes", "1:3", "--master", "127.0.0.1"], False, "1"),
        (["--nodes", "1:3", "--master", "127.0.0.1", "--device", "cpu"], True, "1"),
    ],
)
def test_several_processes_replace_this_one_by_torchrun(
    monkeypatch: pytest.MonkeyPatch, options: list[str], has_gpu: bool, processes: str
) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr("os.execve", lambda path, command, environment: given.append(command) or 0)
    monkeypatch.setattr(finetune_command, "driver_version", lambda: "580.1" if has_gpu else None)

    assert run("--config", "c.yaml", *options).exit_code == 0

    (command,) = given
    assert f"--nproc-per-node={processes}" in command
    assert ("--nnodes=1:3" in command) == ("--nodes" in options)
    assert "--config=c.yaml" in command


def test_enqueueing_prints_only_the_id_and_hints_on_stderr(redis: Redis, config: str) -> None:
    result = run(
        "--config", config, "--enqueue", "mine", "--data", "a.csv", "--set", "seed=7", "--device", "cpu",
        "--processes", "2",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    job_id = result.stdout.strip()
    assert redis.exists(f"kronos:job:{job_id}")
    assert f"kronos finetune --watch {job_id}" in result.stderr
    assert "kronos worker --role finetune" in result.stderr
    job = enqueued_job(redis)
    assert (job["name"], job["data"], job["device"]) == ("mine", {"path": "a.csv"}, "cpu")
    assert job["processes"] == 2
    assert job["config"] == {"data": {"lookback": 30, "pred_len": 5}, "predictor": {"epochs": 2}, "seed": 7}


def test_with_a_live_finetuning_worker_there_is_no_hint_to_start_one(redis: Redis, config: str) -> None:
    announce(redis, fake_worker(CPU_FINETUNE_QUEUE))
    result = run("--config", config, "--enqueue", "mine", "--data", "a.csv", "--json")

    assert result.exit_code == 0
    assert "--role finetune" not in result.stderr
    assert json.loads(result.stdout)["queue"] == CPU_FINETUNE_QUEUE


def test_the_options_of_a_job_are_in_its_message(redis: Redis, config: str) -> None:
    options = ["--no-fallback", "--deadline", "60", "--id", "my-job", "--data", "a.csv", "--data", "b.csv"]
    result = run("--config", config, "--enqueue", "mine", *options)

    assert result.stdout.strip() == "my-job"
    job = enqueued_job(redis)
    assert (job["allow_fallback"], job["deadline_s"]) == (False, 60)
    assert job["data"] == {"path": ["a.csv", "b.csv"]}


def test_inline_files_are_in_the_message(redis: Redis, config: str, tmp_path: Path) -> None:
    for seed, name in enumerate(["BTC", "ETH"]):
        pd.DataFrame(candles(seed, 60).as_dict()).to_csv(tmp_path / f"{name}.csv", index=False)
    files = ["--inline", str(tmp_path / "BTC.csv"), "--inline", str(tmp_path / "ETH.csv")]
    result = run("--config", config, "--enqueue", "mine", *files)

    assert result.exit_code == 0, result.output
    instruments = enqueued_job(redis)["data"]["instruments"]
    assert [(one["id"], len(one["timestamps"])) for one in instruments] == [("BTC", 60), ("ETH", 60)]


def test_options_of_reading_files_are_those_of_the_config(redis: Redis, config: str) -> None:
    reading = ["--columns", "close=Adj Close", "--date-format", "%d/%m/%Y", "--drop-bad-rows"]
    result = run("--config", config, "--enqueue", "mine", "--data", "sp500", *reading)

    assert result.exit_code == 0, result.output
    sent = enqueued_job(redis)["config"]["data"]
    assert (sent["columns"], sent["date_format"], sent["drop_bad_rows"]) == (
        {"close": "Adj Close"}, "%d/%m/%Y", True,
    )  # fmt: skip


def test_each_instrument_of_an_inline_file_is_sent(redis: Redis, config: str, tmp_path: Path) -> None:
    table = pd.concat([pd.DataFrame(candles(seed, 60).as_dict()).assign(id=f"S{seed}") for seed in (1, 2)])
    table.loc[0, "close"] = -1
    table.to_csv(tmp_path / "all.csv", index=False)
    arguments = ["--config", config, "--enqueue", "mine", "--inline", str(tmp_path / "all.csv")]
    refused = run(*arguments, "--id-column", "id")
    assert (refused.exit_code, "; --drop-bad-rows leaves such rows out" in refused.stderr) == (2, True)

    result = run(*arguments, "--id-column", "id", "--drop-bad-rows")

    assert "Warning: rows left out: 1 price not above zero" in result.stderr
    instruments = enqueued_job(redis)["data"]["instruments"]
    assert [(one["id"], len(one["timestamps"])) for one in instruments] == [("S1", 59), ("S2", 59)]


def test_inline_files_beyond_the_limit_are_refused_and_not_cut(
    redis: Redis, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRONOS_MAX_INLINE_BARS", "50")
    pd.DataFrame(candles(1, 60).as_dict()).to_csv(tmp_path / "BTC.csv", index=False)
    result = run("--config", config, "--enqueue", "mine", "--inline", str(tmp_path / "BTC.csv"))

    assert result.exit_code == 2
    assert "LIMIT_EXCEEDED" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--set", "predictor.epochs=0"], "INVALID_CONFIG: predictor.epochs"),
        (["--data", "../a.csv"], "DATA_NOT_ALLOWED: data.path"),
        (["--device", "tpu"], "INVALID_DEVICE: device"),
        (["--config", "/nowhere.yaml"], "INVALID_CONFIG"),
        (["--enqueue", "Mine"], "BAD_VALUE: name"),
    ],
)
def test_an_invalid_option_is_a_usage_error_with_its_code(
    redis: Redis, config: str, arguments: list[str], code: str
) -> None:
    result = run("--config", config, "--enqueue", "mine", "--data", "a.csv", *arguments)

    assert result.exit_code == 2
    assert code in result.stderr
    assert redis.llen(NORMAL) == 0


def test_watching_without_a_terminal_prints_a_line_for_each_epoch(
    client: ForecastClient,
    worker_side: WorkerSide,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    handle = enqueue(client)
    change_at_each_read(worker_side, handle, monkeypatch)

    assert finetune_command.follow(handle, as_json=False) == 0
    printed = capsys.readouterr().out
    assert "crypto-hourly@3" in printed
    assert printed.splitlines()[:4] == [
        "Queued until a finetuning worker is free.",
        "Warning: few bars",
        "predictor, epoch 2 of 10: validation 5.0000",
        "predictor, epoch 3 of 10: validation 4.0000",
    ]


def change_at_each_read(
    worker_side: WorkerSide, handle: FinetuneHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change the job each time that its state is read."""
    backend = worker_side.backend
    changes = iter(
        [
            lambda: backend.store_result(handle.id, PROGRESS | {"step": 1}, PROGRESS_STATE),
            lambda: backend.store_result(handle.id, PROGRESS | {"step": 2}, PROGRESS_STATE),
            lambda: backend.store_result(
                handle.id, PROGRESS | {"epoch": 3, "validation_loss": 4.0}, PROGRESS_STATE
            ),
            lambda: end(worker_side, handle.id),
        ]
    )
    progress, wait = handle.progress, handle.wait

    def changed(state: FinetuneState) -> FinetuneState:
        next(changes, lambda: None)()
        return state

    def changing_wait(*, on_progress: Callable[[FinetuneState], object] | None = None) -> FinetuneResult:
        return wait(on_progress=on_progress and (lambda state: on_progress(changed(state))))

    monkeypatch.setattr(handle, "progress", lambda: map(changed, progress()))
    monkeypatch.setattr(handle, "wait", changing_wait)


def test_watching_as_json_prints_each_state_and_the_result(
    client: ForecastClient,
    worker_side: WorkerSide,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    handle = enqueue(client)
    change_at_each_read(worker_side, handle, monkeypatch)

    assert finetune_command.follow(handle, as_json=True) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["id"] for line in lines} == {handle.id}
    assert [line["state"] for line in lines] == ["PENDING", *["PROGRESS"] * 3, "SUCCESS"]
    assert lines[0]["progress"] == {}
    assert lines[1]["progress"] == PROGRESS | {"step": 1}
    assert lines[-1]["result"] == example("finetune-result")


@pytest.mark.parametrize("as_json", [True, False])
def test_a_job_that_failed_prints_code_and_message(
    client: ForecastClient, worker_side: WorkerSide, as_json: bool
) -> None:
    handle = enqueue(client)
    error = JobError(ErrorCode.TRAINING_DATA_INVALID, "too few bars", "data.path", {"actual": 3})
    worker_side.fail(handle.id, error)
    result = run("--watch", handle.id, *(["--json"] if as_json else []))

    assert result.exit_code == 1
    assert "TRAINING_DATA_INVALID: too few bars" in result.stderr
    if as_json:
        assert json.loads(result.stdout.splitlines()[-1]) == {
            "id": handle.id,
            "state": "FAILURE",
            "error": {
                "code": "TRAINING_DATA_INVALID",
                "message": "too few bars",
                "field": "data.path",
                "details": {"actual": 3},
            },
        }


def test_an_enqueued_job_can_be_watched_at_once(
    redis: Redis, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[str] = []

    def watch(handle: FinetuneHandle, *, as_json: bool) -> int:
        watched.append(handle.id)
        return 1

    monkeypatch.setattr(finetune_command, "follow", watch)
    result = run("--config", config, "--enqueue", "mine", "--watch", "--data", "a.csv")

    assert result.exit_code == 1
    assert watched == [result.stdout.strip()]


def test_ctrl_c_stops_watching_and_not_the_job(
    client: ForecastClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = enqueue(client)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(JobHandle, "wait", interrupt)
    result = run("--watch", handle.id)

    assert result.exit_code == finetune_command.INTERRUPTED
    assert "the job continues" in result.stderr
    assert f"kronos finetune --cancel {handle.id}" in result.stderr
    assert not redis.exists(cancel_key(handle.id))


def test_an_unknown_job_is_lost_and_not_failed(redis: Redis) -> None:
    result = run("--watch", "nobody", "--json")

    assert result.exit_code == 1
    assert "LOST" in result.stderr
    assert json.loads(result.stdout)["state"] == "UNKNOWN"


def test_an_outage_of_redis_does_not_end_the_job(
    client: ForecastClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = enqueue(client)

    def unreachable(*_: object, **__: object) -> None:
        raise JobError(ErrorCode.BROKER_UNREACHABLE, "Redis does not answer")

    monkeypatch.setattr(JobHandle, "wait", unreachable)
    result = run("--watch", handle.id)

    assert result.exit_code == 1
    assert f"The job may continue. To follow it again: kronos finetune --watch {handle.id}" in result.stderr


def test_cancelling_ends_a_waiting_job(client: ForecastClient, redis: Redis) -> None:
    handle = enqueue(client)
    result = run("--cancel", handle.id)

    assert result.exit_code == 0
    assert handle.state().name == "FAILURE"  # no worker had started it


def test_cancelling_an_unknown_job_fails(client: ForecastClient, redis: Redis) -> None:
    result = run("--cancel", "nobody")

    assert result.exit_code == 1
    assert "LOST" in result.output
    assert not redis.exists(cancel_key("nobody"))


def test_the_live_view_is_drawn_on_a_terminal(
    client: ForecastClient,
    worker_side: WorkerSide,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    handle = enqueue(client)
    change_at_each_read(worker_side, handle, monkeypatch)

    assert finetune_command.follow(handle, as_json=False) == 0
    text = click.unstyle(capsys.readouterr().out)
    assert "predictor, epoch 3 of 10" in text
    assert "crypto-hourly@3" in text
