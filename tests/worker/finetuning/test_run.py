"""A finetuning job on a worker, without training: what it is refused for, and what its training is given."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from worker.contract.errors import ErrorCode, JobError
from worker.finetuning import run as finetune_run
from worker.finetuning.process import FinetuneProcess
from worker.finetuning.run import FinetuneRun, Interrupted
from worker.finetuning.training import Stop, TrainingEnd
from worker.jobs import Receipt

BUNDLED = Path(__file__).parents[3] / "kronos_model" / "checkpoints" / "kronos-tiny"
METADATA = {
    "max_context": 64,
    "parent": {"model": "start/parent@1", "revision": None},
    "config": {"start": {"model": "start/parent@1"}, "data": {"path": ["data/a.csv"]}},
    "metrics": {},
    "evaluation": None,
}


@pytest.fixture
def process(settings, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("")
    settings = settings.model_copy(
        update={"model_folder": tmp_path / "models", "data_folder": tmp_path / "data", "threads": 3}
    )
    process = FinetuneProcess(settings, "f@host", {"device": "cpu", "warning": None, "description": {}})
    process.registry.register(BUNDLED, "parent", job_id="p", metadata={"max_context": 77})
    return process


def payload(**fields: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "config": {"start": {"model": "parent"}},
        "data": {"path": "a.csv"},
    } | fields


def a_run(process: FinetuneProcess, **fields: Any) -> FinetuneRun:
    now = time.time()
    return FinetuneRun(
        process, "job", payload(**fields), Receipt(now, now, False, leased_s=2.0), "cpu.finetune"
    )


class FakeTraining:
    """Ends as it is told to, and keeps what it was given."""

    given: dict[str, Any]

    def __init__(self, end: TrainingEnd) -> None:
        self._end = end

    def __call__(self, command: list[str], **given: Any) -> "FakeTraining":
        self.given = given | {"command": command}
        return self

    def run(self, *_: object) -> TrainingEnd:
        self.given["on_start"]()
        return self._end


def go(
    monkeypatch: pytest.MonkeyPatch, run: FinetuneRun, end: TrainingEnd, *, is_safe: bool = True
) -> tuple[dict[str, Any], FakeTraining]:
    training = FakeTraining(end)
    monkeypatch.setattr(finetune_run, "Training", training)
    return run.run(lambda: is_safe, lambda: not is_safe), training


def done(process: FinetuneProcess) -> TrainingEnd:
    return TrainingEnd({"event": "done", "checkpoint": str(BUNDLED), "metadata": METADATA}, None, 0)


def test_what_training_is_given_and_what_is_registered(process, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "here")
    result, training = go(monkeypatch, a_run(process), done(process))
    environment, folder = training.given["env"], training.given["cwd"]
    assert not {"WORLD_SIZE", "MASTER_ADDR"} & environment.keys()
    assert environment["OMP_NUM_THREADS"] == "3"
    config = json.loads((folder / "config.json").read_text())
    assert config["data"]["path"] == ["data/a.csv"]
    assert (folder / "data" / "a.csv").exists()
    assert (config["start"]["model"], config["max_context"]) == ("start/parent@1", 77)
    assert (folder / "start" / "parent@1" / "model").is_dir()
    model = process.registry.resolve("mine@1")
    assert model.metadata.parent["model"] == "parent@1"
    assert model.metadata.config == {"start": {"model": "parent@1"}, "data": {"path": "a.csv"}}
    assert (result["model"]["id"], result["num_attempts"], result["resumed"]) == ("mine@1", 1, False)
    assert result["timings_ms"]["training"] >= 2000


def test_a_job_that_was_registered_already_gives_the_same_result_without_training(process, monkeypatch):
    first, _ = go(monkeypatch, a_run(process), done(process))
    monkeypatch.setattr(finetune_run, "Training", None)
    assert a_run(process).run(lambda: True, lambda: False) == first
    assert process.registry.resolve("mine").version == 1


def test_a_later_worker_starts_from_the_same_version_of_the_parent(process, monkeypatch):
    with pytest.raises(Interrupted):
        go(monkeypatch, a_run(process), TrainingEnd(None, Stop.DRAINED, 75))
    process.registry.register(BUNDLED, "parent", job_id="q", metadata={"max_context": 64})
    result, training = go(monkeypatch, a_run(process), done(process))
    assert (
        json.loads((training.given["cwd"] / "config.json").read_text())["start"]["model"] == "start/parent@1"
    )
    assert (result["num_attempts"], result["resumed"]) == (2, True)


@pytest.mark.parametrize(
    ("end", "code", "field"),
    [
        (TrainingEnd(None, Stop.CANCELLED, 75), ErrorCode.CANCELLED, None),
        (TrainingEnd(None, Stop.DEADLINE, 75), ErrorCode.DEADLINE, "deadline_s"),
        (TrainingEnd(None, None, -9), ErrorCode.OUT_OF_MEMORY, "config"),
        (TrainingEnd(None, None, -11), ErrorCode.INTERNAL, None),
        (
            TrainingEnd({"event": "error", "code": "DISK_FULL", "message": "m", "field": "seed"}, None, 1),
            ErrorCode.DISK_FULL,
            "config.seed",
        ),
        (
            TrainingEnd(
                {"event": "error", "code": "DISK_FULL", "message": "m", "field": "data.path"}, None, 1
            ),
            ErrorCode.DISK_FULL,
            "data.path",
        ),
    ],
)
def test_each_end_is_a_code_that_names_the_best_checkpoint(process, monkeypatch, end, code, field):
    run = a_run(process)
    best = run._folder.run / "predictor" / "best"
    best.mkdir(parents=True)
    run._folder.write_notes(finetune_run.JobNotes(run._fingerprint, {}, 0.0))
    with pytest.raises(JobError) as ended:
        go(monkeypatch, run, end)
    assert (ended.value.code, ended.value.field) == (code, field)
    assert process.model_folder / ended.value.details["best_checkpoint"] == best


@pytest.mark.parametrize("end", [TrainingEnd(None, Stop.LEASE, -9), TrainingEnd(None, Stop.CANCELLED, 75)])
def test_without_its_lease_a_job_is_anothers_whatever_became_of_training(process, monkeypatch, end):
    run = a_run(process)
    with pytest.raises(Interrupted):
        go(monkeypatch, run, end, is_safe=False)


def test_a_job_that_is_late_or_cancelled_does_not_start(process):
    run = a_run(process)
    run.is_cancelled = True
    with pytest.raises(JobError, match="CANCELLED"):
        run.run(lambda: True, lambda: False)
    with pytest.raises(JobError, match="DEADLINE"):
        a_run(process, submitted_at=1.0, deadline_s=5.0).run(lambda: True, lambda: False)
    limited = process.settings.model_copy(update={"finetune_time_limit_s": 1.0})
    process.settings = limited
    with pytest.raises(JobError, match="KRONOS_FINETUNE_TIME_LIMIT_S"):  # of 2 s that it was trained before
        a_run(process).run(lambda: True, lambda: False)


def test_a_job_that_asked_for_a_gpu_is_told_that_it_got_none(process, monkeypatch):
    result, _ = go(monkeypatch, a_run(process, device="cuda:1"), done(process))
    warning = "CUDA device 'cuda:1' requested but no GPU worker for finetuning is ready. Falling back to CPU."
    assert (result["device"], result["device_warning"], result["warnings"]) == ("cpu", warning, [warning])
    with pytest.raises(JobError) as refused:
        a_run(process, device="cuda:1", allow_fallback=False)
    assert refused.value.code == ErrorCode.NO_GPU_WORKER
