"""Whole runs, in this process."""

import importlib
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from kronos_model import Kronos, KronosTokenizer
from kronos_model.checkpoints.source import read_metadata
from kronos_model.devices.probe import TorchProbe
from kronos_model.errors import (
    DeviceLost,
    DiskFull,
    FinetuningConfigError,
    RunLocked,
    TrainingDataError,
    TrainingStopped,
)
from kronos_model.finetuning import finetune
from kronos_model.finetuning.run_folder import RunFolder
from kronos_model.finetuning.stages.stage import PredictorStage
from kronos_model.finetuning.starting_point import with_revisions
from kronos_model.model_pair import default_max_context, load_pair

from .tiny_runs import tiny_config, write_candles


class Events(list[Any]):
    __call__ = list.append

    def of(self, kind: str) -> list[Any]:
        return [event for event in self if event["event"] == kind]


def logged(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A run of both stages from scratch, with a comparison."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    events = Events()
    config = tiny_config(data, evaluation={"windows": 3, "sample_count": 2})
    return finetune(config, folder, listeners=[events]), events, folder


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    """The same without a comparison."""
    folder, events = tmp_path_factory.mktemp("plain"), Events()
    return finetune(tiny_config(data), folder, listeners=[events]), events, folder


def test_both_stages_are_trained_one_after_the_other(finished):
    _, events, _ = finished
    assert [(epoch["stage"], epoch["epoch"], epoch["step"]) for epoch in events.of("epoch")] == [
        ("tokenizer", 1, 4), ("tokenizer", 2, 8), ("predictor", 1, 4), ("predictor", 2, 8),
    ]  # fmt: skip
    assert {(step["stage"], step["stage_index"], step["num_stages"]) for step in events.of("step")} == {
        ("tokenizer", 0, 2), ("predictor", 1, 2),
    }  # fmt: skip
    many = ("step", "epoch", "evaluating", "phase")
    assert [event["event"] for event in events if event["event"] not in many] == [
        "started", "data", "evaluation", "done",
    ]  # fmt: skip


def test_the_result_is_a_checkpoint_with_metadata(finished, data):
    result, events, folder = finished
    pair = load_pair(result.checkpoint)
    assert pair.max_context == default_max_context(result.checkpoint) == 32
    assert read_metadata(result.checkpoint)["trained"] is True
    metadata = json.loads((result.checkpoint / "metadata.json").read_text())
    assert metadata == result.metadata == events.of("done")[0]["metadata"]
    assert metadata["parent"]["model"] == metadata["parent"]["tokenizer"] == "from scratch"
    assert metadata["config"] == tiny_config(data, evaluation={"windows": 3, "sample_count": 2}).model_dump(
        mode="json"
    )
    assert metadata["metrics"]["predictor"]["steps"] == 8
    assert metadata["data_fingerprint"].startswith("sha256:")
    assert metadata["evaluation"]["num_windows"] == 3
    ours = metadata["evaluation"]["models"]["finetuned"]
    assert set(ours["against"]) == {"last_value", "drift", "random_walk"}
    assert metadata["evaluation"]["no_seasonal"]  # the lookback is shorter than a day
    assert metadata["evaluation"]["verdict"] == ours["verdict"]
    # The weights are the best ones of each stage.
    for part, stage in (("model", "predictor"), ("tokenizer", "tokenizer")):
        best = (folder / stage / "best" / "model.safetensors").read_bytes()
        assert (result.checkpoint / part / "model.safetensors").read_bytes() == best


def test_metrics_are_kept_for_each_epoch(finished):
    _, _, folder = finished
    epochs = [line for line in logged(folder) if line["event"] == "epoch"]
    assert len(epochs) == 4
    assert {"train_loss", "validation_loss", "is_best", "best_validation_loss"} <= epochs[0].keys()
    assert logged(folder)[-1]["event"] == "evaluation"
    assert list((folder / "tensorboard").glob("events.*")) or find_spec("tensorboard") is None


def test_a_finished_run_is_not_done_again(finished, data):
    result, _, folder = finished
    before = (folder / "metrics.jsonl").read_text()
    events = Events()
    config = tiny_config(data, evaluation={"windows": 3, "sample_count": 2})
    again = finetune(config, folder, listeners=[events])
    assert again.metadata == result.metadata
    assert events.of("step") == []
    assert events.of("started")[0]["resumed"]
    assert (folder / "metrics.jsonl").read_text() == before


def test_a_run_stopped_anywhere_ends_with_the_same_weights(data, tmp_path, plain):
    whole, _, folder = plain
    for _ in range(30):
        events = Events()

        def should_stop(events=events):
            return len(events.of("step")) >= 3

        try:
            parts = finetune(
                tiny_config(data), tmp_path / "parts", listeners=[events], should_stop=should_stop
            )
            break
        except TrainingStopped:
            assert (tmp_path / "parts" / events.of("step")[-1]["stage"] / "state.safetensors").exists()
    for part in ("model", "tokenizer"):
        ours, theirs = (
            run.checkpoint.joinpath(part, "model.safetensors").read_bytes() for run in (parts, whole)
        )
        assert ours == theirs
    for ours, theirs in zip(logged(tmp_path / "parts"), logged(folder), strict=True):
        assert ours["step"] == theirs["step"]
        assert ours["loss" if ours["event"] == "step" else "train_loss"] == pytest.approx(
            theirs["loss" if ours["event"] == "step" else "train_loss"], abs=1e-6
        )
        assert ours.get("validation_loss") == theirs.get("validation_loss")


def test_one_stage_from_a_checkpoint(finished, data, tmp_path):
    start, _, _ = finished
    events = Events()
    config = tiny_config(
        data,
        start={"model": str(start.checkpoint)},
        stages=["predictor"],
        evaluation={"windows": 4, "sample_count": 2},
    )
    result = finetune(config, tmp_path / "run", listeners=[events])
    assert {epoch["stage"] for epoch in events.of("epoch")} == {"predictor"}
    assert result.metadata["parent"]["model"] == str(start.checkpoint)
    assert result.metadata["max_context"] == 32
    assert "start" in result.metadata["evaluation"]["models"]["finetuned"]["against"]
    theirs, ours = (KronosTokenizer.from_pretrained(run.checkpoint).state_dict() for run in (start, result))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    theirs, ours = (Kronos.from_pretrained(run.checkpoint).state_dict() for run in (start, result))
    assert not all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture
def imported_before_cuda_is_forbidden() -> None:
    """Import the modules of training that query CUDA when they are imported."""
    importlib.import_module("accelerate")
    importlib.import_module("torch._dynamo")


def test_a_run_on_the_cpu_touches_no_cuda_and_makes_no_process_group(
    data, tmp_path, imported_before_cuda_is_forbidden, no_cuda_calls, monkeypatch
):
    # PyTorch's own optimiser checks for an accelerator, but uses none.
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)
    # As torchrun leaves them for a single process.
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a single process needs no group")

    monkeypatch.setattr(torch.distributed, "init_process_group", refuse)
    finetune(tiny_config(data, evaluation={"windows": 1, "sample_count": 2}), tmp_path / "run")
    assert no_cuda_calls == []
    assert not torch.distributed.is_initialized()


def stop_after(num_steps: int, config: Any, folder: Path) -> Events:
    events = Events()
    with pytest.raises(TrainingStopped):
        finetune(config, folder, listeners=[events], should_stop=lambda: len(events.of("step")) >= num_steps)
    return events


def test_a_failed_start_leaves_the_folder_free(data, tmp_path):
    with pytest.raises(TrainingDataError):
        finetune(tiny_config(tmp_path / "nowhere"), tmp_path / "run")
    with pytest.raises(FinetuningConfigError, match="sees 20") as raised:
        finetune(tiny_config(data, max_context=20), tmp_path / "run")
    assert raised.value.field == "data.lookback"
    with pytest.raises(FinetuningConfigError, match="fp16"):
        finetune(tiny_config(data, mixed_precision="fp16"), tmp_path / "run")
    with pytest.raises(TrainingStopped):
        finetune(tiny_config(data), tmp_path / "run", should_stop=lambda: True)
    assert not stop_after(1, tiny_config(data, seed=3), tmp_path / "run").of("started")[0]["resumed"]
    assert stop_after(1, tiny_config(data, seed=3), tmp_path / "run").of("started")[0]["resumed"]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_lost_device_is_no_defect(data, tmp_path, monkeypatch, is_lost):
    def fail(event):
        if event["event"] == "step":
            raise RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED. More of it")

    monkeypatch.setattr(TorchProbe, "is_lost", lambda self, device: is_lost)
    with pytest.raises(DeviceLost if is_lost else RuntimeError, match="CUBLAS_STATUS_EXECUTION_FAILED"):
        finetune(tiny_config(data), tmp_path / "run", listeners=[fail])


def test_files_of_killed_saves_are_removed(data, tmp_path):
    stop_after(1, tiny_config(data), tmp_path)
    (tmp_path / "tokenizer/.best.abc.tmp").mkdir()
    (tmp_path / "tokenizer/.state.safetensors.abc.tmp").touch()
    (tmp_path / ".data.json.abc.tmp").touch()
    stop_after(1, tiny_config(data), tmp_path)
    assert list(tmp_path.rglob("*.tmp")) == []
    assert (tmp_path / "tokenizer/state.safetensors").stat().st_mode == (tmp_path / "lock").stat().st_mode


def test_a_resumed_run_uses_the_commit_that_it_started_with(data, tmp_path):
    start = {"model": "owner/name", "model_revision": "main", "tokenizer": "other/name"}
    config = tiny_config(data, start=start)
    parent = {"model": "owner/name", "revision": "a" * 40, "tokenizer": "x", "tokenizer_revision": None}
    pinned = with_revisions(config, parent).start
    assert (pinned.model_revision, pinned.tokenizer_revision) == ("a" * 40, None)


def test_a_missing_comparison_is_explained(plain):
    result, events, _ = plain
    assert result.metadata["evaluation"] is None
    assert events.of("evaluation")[0]["summary"] == "Not compared: evaluation.windows is 0."


def test_targets_are_the_tokens_of_a_forecast(finished, data):
    """In float32, for any precision of training."""
    pair = load_pair(finished[0].checkpoint)
    stage = PredictorStage(pair.model, pair.tokenizer, "teacher_forced")
    batch = {"x": torch.randn(64, 32, 6), "stamp": torch.ones(64, 32, 5, dtype=torch.int64)}
    with torch.no_grad():
        s1, s2 = pair.tokenizer.encode(batch["x"])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, targets = stage.predict(pair.model, batch)
            rounded, _ = pair.tokenizer.encode(batch["x"])
    assert torch.equal(targets[0], s1[:, 1:])
    assert torch.equal(targets[1], s2[:, 1:])
    assert not torch.equal(rounded, s1)  # else this test proves nothing


def test_changed_candles_are_refused(tmp_path):
    data = write_candles(tmp_path / "candles")
    stop_after(1, tiny_config(data), tmp_path / "run")
    moved = tmp_path / "elsewhere"
    data.rename(moved)
    stop_after(1, tiny_config(moved), tmp_path / "run")  # their folder does not matter
    shutil.copy(moved / "synthetic-0.csv", moved / "synthetic-2.csv")
    with pytest.raises(TrainingDataError, match="started with other candles"):
        finetune(tiny_config(moved), tmp_path / "run")


def test_a_folder_of_another_run_is_refused(data, tmp_path):
    RunFolder(tmp_path).begin(tiny_config(data), {}, {})
    with pytest.raises(FinetuningConfigError, match="seed") as raised:
        finetune(tiny_config(data, seed=1), tmp_path)
    assert raised.value.field == "seed"


def test_two_processes_do_not_train_in_one_folder(data, tmp_path, monkeypatch):
    monkeypatch.setattr("kronos_model.finetuning.run_folder.LOCK_WAIT_S", 0.0)
    with RunFolder(tmp_path).locked(), pytest.raises(RunLocked):
        finetune(tiny_config(data), tmp_path)


def test_free_disk_space_is_checked_first(data, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DiskFull, match="MiB") as raised:
        finetune(tiny_config(data), tmp_path / "run")
    assert raised.value.details["free_bytes"] == 1000


def test_bfloat16_trains_on_the_cpu(data, tmp_path, plain):
    events = Events()
    finetune(tiny_config(data, mixed_precision="bf16"), tmp_path / "bf16", listeners=[events])
    ours, theirs = ([epoch["validation_loss"] for epoch in run.of("epoch")] for run in (events, plain[1]))
    assert ours != theirs
    assert ours == pytest.approx(theirs, rel=0.05)


def test_windows_from_other_processes_are_the_same(data, tmp_path, plain):
    helped = Events()
    finetune(tiny_config(data, num_workers=1), tmp_path / "helped", listeners=[helped])
    assert [step["loss"] for step in helped.of("step")] == [step["loss"] for step in plain[1].of("step")]
