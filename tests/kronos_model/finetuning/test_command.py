"""The command line in separate processes: exit statuses, signals, parents."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from kronos_model.engine.build import build_engine
from kronos_model.errors import DeviceLost
from kronos_model.finetuning import finetune
from kronos_model.finetuning.__main__ import main
from tests import fork_server
from tests.waiting import WAIT_S

from .tiny_runs import tiny_config

ROOT = Path(__file__).parents[3]
COMMAND = "kronos_model.finetuning"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def config_file(data, tmp_path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(tiny_config(data).model_dump_json())
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return fork_server.run([COMMAND, *map(str, arguments)], ENVIRONMENT)


def events_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_shows_its_progress_and_prints_its_checkpoint(config_file, tmp_path):
    output = tmp_path / "run"
    done = run("--config", config_file, "--output", output, "--set", "predictor.epochs=1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{output / 'checkpoint'}\n"
    assert "tokenizer, epoch 2 of 2: loss" in done.stderr
    assert "predictor, epoch 1 of 1: loss" in done.stderr
    assert "lr=" not in done.stderr  # a pipe gets no bar


def test_errors_end_the_command_with_one_line(config_file, tmp_path, monkeypatch, capsys):
    done = run("--config", config_file, "--output", tmp_path / "run", "--set", "predictor.epoch=1")
    assert done.returncode == 1
    assert done.stderr.strip().endswith("remove it or check its spelling")
    assert "Traceback" not in done.stderr
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    arguments = [
        "--config",
        config_file,
        "--data",
        tmp_path / "no",
        "--progress",
        "json",
        "--output",
        tmp_path,
    ]
    assert main([str(part) for part in arguments]) == 1
    error = events_of(capsys.readouterr().out)[-1]
    assert (error["event"], error["code"], error["field"]) == ("error", "TRAINING_DATA_INVALID", "data.path")


def test_a_device_that_fails_ends_the_command_without_an_event(config_file, tmp_path, monkeypatch, capsys):
    """Its parent then starts training again, in a process that can still use the device."""

    def fail(*_: object, **__: object) -> None:
        raise DeviceLost("cuda:0 failed")

    monkeypatch.setattr("kronos_model.finetuning.run.finetune", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    arguments = ["--config", str(config_file), "--output", str(tmp_path), "--progress", "json"]
    assert main(arguments) == 70
    assert tuple(capsys.readouterr()) == ("", "cuda:0 failed\n")


def start(*arguments: object) -> fork_server.Process:
    command = [COMMAND, *map(str, arguments), "--progress", "json"]
    pipe = subprocess.PIPE
    return fork_server.Process(
        command, ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    )


def read_until(process: fork_server.Process, kind: str) -> Any:
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == kind:
            return event
    raise AssertionError(f"the process ended without {kind}")


def test_the_comparison_is_computed_by_the_engine_that_is_given(config_file, tmp_path, monkeypatch):
    kinds = []

    def build(*args, kind, **options):
        kinds.append(kind)
        return build_engine(*args, kind=kind, **options)

    monkeypatch.setattr("kronos_model.finetuning.final_evaluation.build_engine", build)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    fields = ("evaluation.windows=1", "evaluation.sample_count=2")
    given = ["--config", str(config_file), *(f"--set={field}" for field in fields), "--engine", "torch"]
    assert main([*given, "--output", str(tmp_path / "run")]) == 0
    assert kinds == ["torch"]


def test_signals_and_the_end_of_its_parent_stop_it_with_its_state_saved(config_file, tmp_path):
    arguments = ["--config", config_file, "--output", tmp_path / "run", "--set", "predictor.epochs=100000"]
    for number in (signal.SIGTERM, signal.SIGINT, None):
        process = start(*arguments, "--supervised")
        assert read_until(process, "started")["resumed"] == (number != signal.SIGTERM)
        while (event := read_until(process, "progress"))["stage"] != "predictor":
            pass
        assert event["step"] > 1 or number == signal.SIGTERM
        if number is None:
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(number)
            assert read_until(process, "stopped")["best_checkpoint"] in (
                str(tmp_path / "run" / stage / "best") for stage in ("predictor", "tokenizer")
            )
        assert process.wait(WAIT_S) == 75


def test_a_killed_run_resumes_from_its_last_save(data, config_file, tmp_path):
    """It is killed several times with SIGKILL, and saves as often as it can."""
    arguments = ["--config", config_file, "--output", tmp_path / "run", "--set", "save_interval_s=1e-9"]
    for _ in range(2):
        process = start(*arguments)
        event = read_until(process, "progress")
        time.sleep(0.02 * (event["step"] % 3))
        process.kill()
        process.wait()
    finished = start(*arguments)
    ours = read_until(finished, "done")["metadata"]["metrics"]
    finished.wait()
    theirs = finetune(tiny_config(data), tmp_path / "whole").metadata["metrics"]
    for stage in ("tokenizer", "predictor"):
        assert ours[stage]["best_loss"] == pytest.approx(theirs[stage]["best_loss"], abs=1e-6)
        assert ours[stage]["steps"] == theirs[stage]["steps"] == 8
