"""A finetuning job on a worker, without training: its refusals, and the arguments of its training."""

import json
import math
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import FinetuneProgress, parse_finetune_job
from kronos_client.contract.job_limits import Limits
from kronos_client.redis.job_store import Receipt
from kronos_client.redis.message import fingerprint
from kronos_model.errors import DiskFull
from kronos_model.processes.children import LocalStackError
from kronos_model.processes.json_child import ChildEnded
from worker.deadline import Deadline
from worker.process import RetryLater
from worker.training import finetune_run
from worker.training.finetune_process import FinetuneProcess
from worker.training.finetune_run import MAX_MESSAGE_CHARS, FinetuneRun, training_error
from worker.training.job_folder import JobFolder, JobNotes
from worker.training.long_run import MAX_STARTS_AT_SAVE

BUNDLED = Path(__file__).parents[3] / "kronos_model" / "bundled" / "kronos-tiny"
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
    process.registry.register(BUNDLED, "parent", job_id="p", fingerprint="f", metadata={"max_context": 77})
    return process


def starts_at_save(process: FinetuneProcess) -> int:
    return json.loads((folder_of(process).root / "job.json").read_text())["num_starts_at_save"]


def folder_of(process: FinetuneProcess) -> JobFolder:
    return JobFolder(process.model_folder, "job")


def begin(process: FinetuneProcess) -> None:
    """Leave the files of an earlier worker."""
    folder_of(process).write_notes(JobNotes(fingerprint(payload()), {}, 0.0))


def payload(**fields: Any) -> dict[str, Any]:
    return {"name": "mine", "config": {"start": {"model": "parent"}}, "data": {"path": "a.csv"}} | fields


def a_run(process: FinetuneProcess, time_limit_s: float = math.inf, **fields: Any) -> FinetuneRun:
    process.state = "ready"
    now = time.time()
    receipt = Receipt(now, now, False, worked_s=2.0)
    job = payload(**fields)
    return FinetuneRun(process, "job", job, fingerprint(job), receipt, "cpu.finetune", time_limit_s)


class TrainingEnd(NamedTuple):
    """How a process ends: its last event, what has stopped it, and its exit status."""

    event: dict[str, Any] | None
    stop: Callable[[FinetuneRun], object]
    exit_status: int


def not_stopped(run: FinetuneRun) -> None: ...


def cancelled(run: FinetuneRun) -> None:
    run.is_cancelled = True


def late(run: FinetuneRun) -> None:
    run._deadline = Deadline.after(waited_s=2.0, deadline_s=1.0)


def drained(run: FinetuneRun) -> None:
    run.process.drain()


def claim_lost(run: FinetuneRun) -> None:
    run._claim.is_safe = False  # type: ignore[misc]


def claim_run_out(run: FinetuneRun) -> None:
    run._claim.is_safe, run._claim.is_running_out = False, True  # type: ignore[misc]


class FakeTraining:
    """Has scripted ends in place of processes, and keeps their arguments.

    Args:
        resumed: ``resumed`` in the process's ``started`` event; None for a process that sends none.
        after_start: Called after that event.
    """

    given: dict[str, Any]

    def __init__(
        self,
        run: FinetuneRun,
        *ends: TrainingEnd | BaseException,
        resumed: bool | None = False,
        after_start: Callable[[], object] = lambda: None,
    ) -> None:
        self._run = run
        self._ends = iter(ends)
        self._resumed = resumed
        self._after_start = after_start

    def __call__(self, name: str, command: list[str], **given: Any) -> "FakeChild":
        self.given = given | {"command": command}
        end = next(self._ends)
        if isinstance(end, BaseException):
            raise end
        end.stop(self._run)
        events: list[dict[str, Any]] = []
        if self._resumed is not None:
            started = {"event": "started", "device": "cpu", "device_warning": None}
            events = [
                started | {"resumed": self._resumed},
                {"event": "data", "warnings": ["few bars"]},
                {"event": "progress", "stage": "tokenizer"},
            ]
        events += [] if end.event is None else [end.event]
        return FakeChild([None, *events], end.exit_status, self._after_start)


class FakeChild:
    pid = -1

    def __init__(self, events: list[Any], exit_status: int, after_start: Callable[[], object]) -> None:
        self._events, self._exit_status, self._after_start = events, exit_status, after_start

    def next_event(self, timeout_s: float) -> Any:
        if not self._events:
            self._after_start()
            raise ChildEnded("training", self._exit_status)
        return self._events.pop(0)

    def terminate(self) -> None: ...

    kill = stop = terminate


def claim() -> Any:
    return SimpleNamespace(is_safe=True, is_running_out=False)


def go(
    monkeypatch: pytest.MonkeyPatch,
    run: FinetuneRun,
    *ends: TrainingEnd | BaseException,
    held: Any = None,
    **options: Any,
) -> tuple[dict[str, Any], FakeTraining]:
    training = FakeTraining(run, *ends, **options)
    monkeypatch.setattr(finetune_run, "JsonChild", training)
    return run.run(held or claim()), training


def done(process: FinetuneProcess) -> TrainingEnd:
    return TrainingEnd({"event": "done", "checkpoint": str(BUNDLED), "metadata": METADATA}, not_stopped, 0)


def failed(field: str) -> TrainingEnd:
    error = {"event": "error", "code": "DISK_FULL", "message": "m", "field": field}
    return TrainingEnd(error, not_stopped, 1)


def test_the_arguments_of_training_and_the_registered_model(process, monkeypatch):
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
    assert result["verdict"][-1] == "No backtest of this model is recorded here."
    assert result["timings_ms"]["training"] >= 2000


def test_a_start_model_that_has_the_short_name_of_another_one_gives_a_warning(process, monkeypatch):
    given = {"config": {"start": {"model": "tiny"}}}
    process.registry.register(BUNDLED, "tiny", job_id="t", fingerprint="f", metadata={"max_context": 77})
    result, _ = go(monkeypatch, a_run(process, **given), done(process))
    taken = "tiny is the registered model tiny@1 here, not kronos-tiny."
    assert list(result["warnings"]) == ["few bars", taken]


def test_the_verdict_ends_with_what_to_try_next(process, monkeypatch):
    advice = "Next, try more data."
    evaluation = {"verdict": ["It is worse.", advice], "next_step": advice}
    event = {"event": "done", "checkpoint": str(BUNDLED), "metadata": METADATA | {"evaluation": evaluation}}
    result, _ = go(monkeypatch, a_run(process), TrainingEnd(event, not_stopped, 0))
    assert list(result["verdict"]) == [
        "It is worse.",
        "No backtest of this model is recorded here.",
        advice,
    ]


def test_a_job_of_several_processes_trains_by_torchrun_on_their_own_gpus(process, monkeypatch):
    monkeypatch.setattr(process, "device", "cuda:0")
    monkeypatch.setattr(process, "max_processes", 4)
    process.settings = process.settings.model_copy(update={"engine": "torch"})
    _, training = go(monkeypatch, a_run(process, processes=4), done(process))
    command = training.given["command"]
    assert command[command.index("--engine") + 1] == "torch"
    assert {"torch.distributed.run", "--nproc-per-node=4", "--standalone"} <= set(command)
    assert command[command.index("--device") + 1] == "cuda"


def test_more_processes_than_the_machine_has_cores_are_refused(process, monkeypatch):
    monkeypatch.setattr(process, "max_processes", 4)
    with pytest.raises(
        JobError, match="processes: 5 is more than the worker's limit of 4 CPU cores"
    ) as raised:
        a_run(process, processes=5).run(claim())
    assert (raised.value.code, raised.value.field) == (ErrorCode.LIMIT_EXCEEDED, "processes")


def test_a_model_from_scratch_is_registered_with_its_shape(process, monkeypatch):
    shape = {"d_model": 16}
    metadata = METADATA | {"config": {"start": {"model": shape}, "data": {"path": ["data/a.csv"]}}}
    end = TrainingEnd({"event": "done", "checkpoint": str(BUNDLED), "metadata": metadata}, not_stopped, 0)
    go(monkeypatch, a_run(process), end)
    assert process.registry.resolve("mine").metadata.config["start"] == {"model": shape}


def test_a_job_that_was_registered_already_gives_the_same_result_without_training(process, monkeypatch):
    first, _ = go(monkeypatch, a_run(process), done(process))
    monkeypatch.setattr(finetune_run, "JsonChild", None)
    checkpoint = folder_of(process).run / "checkpoint"  # left by a worker that died after the result
    checkpoint.mkdir(parents=True)
    assert a_run(process).run(claim()) == first
    assert process.registry.resolve("mine").version == 1
    assert not checkpoint.exists()


@pytest.mark.parametrize("changes", [{"job_id": "another"}, {"job_fingerprint": "another"}, None])
def test_another_jobs_model_or_a_damaged_one_is_not_this_ones_result(process, monkeypatch, changes):
    go(monkeypatch, a_run(process), done(process))
    path = process.model_folder / "mine" / "1" / "metadata.json"
    path.write_text("{" if changes is None else json.dumps(json.loads(path.read_text()) | changes))
    result, _ = go(monkeypatch, a_run(process), done(process))
    assert result["model"]["id"] == "mine@2"


def test_a_later_worker_starts_from_the_same_version_of_the_parent(process, monkeypatch):
    with pytest.raises(RetryLater):
        go(monkeypatch, a_run(process), TrainingEnd(None, drained, 75))
    process.registry.register(BUNDLED, "parent", job_id="q", fingerprint="f", metadata={"max_context": 64})
    result, training = go(monkeypatch, a_run(process), done(process), resumed=True)
    assert (
        json.loads((training.given["cwd"] / "config.json").read_text())["start"]["model"] == "start/parent@1"
    )
    assert (result["num_attempts"], result["resumed"]) == (2, True)


@pytest.mark.parametrize(
    ("end", "code", "field"),
    [
        (TrainingEnd(None, cancelled, 75), ErrorCode.CANCELLED, None),
        (TrainingEnd(None, late, 75), ErrorCode.DEADLINE, "deadline_s"),
        (TrainingEnd(None, not_stopped, -9), ErrorCode.OUT_OF_MEMORY, "config"),
        (TrainingEnd(None, not_stopped, -11), ErrorCode.INTERNAL, None),
        (failed("seed"), ErrorCode.DISK_FULL, "config.seed"),
        (failed("data.path"), ErrorCode.DISK_FULL, "data.path"),
    ],
)
def test_each_end_is_a_code_that_names_the_best_checkpoint(process, monkeypatch, end, code, field):
    run = a_run(process)
    (folder_of(process).run / "predictor" / "best").mkdir(parents=True)
    begin(process)
    with pytest.raises(JobError) as ended:
        go(monkeypatch, run, end, end)
    assert (ended.value.code, ended.value.field) == (code, field)
    assert process.model_folder / ended.value.details["best_checkpoint"] == folder_of(process).run / "best"
    assert (folder_of(process).run / "best" / "model").is_dir()


def test_a_model_that_cannot_be_registered_is_kept_and_registered_when_the_job_is_sent_again(
    process, monkeypatch
):
    def refuse(*_: object, **__: object) -> None:
        raise DiskFull("no room")

    run = a_run(process)
    made = folder_of(process).run / "checkpoint"
    begin(process)
    shutil.copytree(BUNDLED, made)
    needed = [folder_of(process).run / name for name in ("config.json", "data.json", "parent.json")]
    for path in needed:
        path.write_text("{}")
    end = TrainingEnd({"event": "done", "checkpoint": "run/checkpoint", "metadata": METADATA}, not_stopped, 0)
    with monkeypatch.context() as patch:
        patch.setattr(process.registry, "register", refuse)
        with pytest.raises(JobError) as ended:
            go(patch, run, end)
    assert ended.value.code == ErrorCode.DISK_FULL
    assert process.model_folder / ended.value.details["best_checkpoint"] == made
    assert all(path.exists() for path in needed)
    result, _ = go(monkeypatch, a_run(process), end)
    assert result["model"]["id"] == "mine@1"
    assert not made.exists()


def test_a_job_that_ends_its_worker_each_time_ends_with_a_code(process, monkeypatch):
    """A start leaves only its count. At another save the count begins again."""
    begin(process)
    state = folder_of(process).run / "predictor" / "state.safetensors"
    state.parent.mkdir(parents=True)
    for has_saved in (True, False):
        if has_saved:
            state.write_text("")
        for _ in range(MAX_STARTS_AT_SAVE):
            with pytest.raises(KeyboardInterrupt):
                go(monkeypatch, a_run(process), KeyboardInterrupt())
        state.unlink(missing_ok=True)
    with pytest.raises(JobError) as ended:
        go(monkeypatch, a_run(process), done(process))
    assert (ended.value.code, ended.value.field) == (ErrorCode.OUT_OF_MEMORY, "config")
    assert go(monkeypatch, a_run(process), done(process))[0]["num_attempts"] == 1  # sent again


LOCKED = TrainingEnd({"event": "error", "code": "RUN_LOCKED", "message": "m"}, not_stopped, 1)


def test_training_waits_for_a_locked_folder(process, monkeypatch):
    monkeypatch.setattr(finetune_run, "LOCK_RETRY_S", 0.0)
    result, _ = go(monkeypatch, a_run(process), LOCKED, LOCKED, done(process))
    assert result["model"]["id"] == "mine@1"
    monkeypatch.setattr(finetune_run, "LOCK_WAIT_S", -1.0)
    with pytest.raises(JobError) as ended:
        go(monkeypatch, a_run(process, name="other"), LOCKED)
    assert ended.value.code == ErrorCode.RUN_LOCKED


def test_training_killed_between_saves_is_started_again(process, monkeypatch):
    moments = iter((1, 2, 3))

    def save(run: FinetuneRun) -> None:
        state = folder_of(process).run / "predictor" / "state.safetensors"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text("")
        os.utime(state, ns=(moment := next(moments), moment))

    killed = TrainingEnd(None, save, -9)
    result, _ = go(monkeypatch, a_run(process), killed, killed, killed, done(process))
    assert result["num_attempts"] == 4


def test_training_that_is_done_before_its_worker_stops_is_registered(process, monkeypatch):
    result, _ = go(monkeypatch, a_run(process), done(process)._replace(stop=drained))
    assert result["model"]["id"] == "mine@1"


@pytest.mark.parametrize("stop", [cancelled, claim_run_out])
def test_training_that_ignores_its_end_is_killed(process, monkeypatch, stop):
    process.settings = process.settings.model_copy(update={"finetune_grace_s": 0})
    run, calls = a_run(process), list[str]()

    class Stubborn(FakeChild):
        def next_event(self, timeout_s: float) -> Any:
            if "kill" in calls:
                raise ChildEnded("training", -9)
            stop(run)
            return {"event": "progress", "stage": "tokenizer"}

        def terminate(self) -> None:
            calls.append("terminate")

        def kill(self) -> None:
            calls.append("kill")

    monkeypatch.setattr(finetune_run, "JsonChild", lambda *_, **__: Stubborn([], -9, lambda: None))
    with pytest.raises((JobError, RetryLater), match=r"CANCELLED|claim could not be renewed"):
        run.run(claim())
    assert calls == ["terminate", "kill"]


def test_a_killed_start_counts_even_if_the_job_is_stopped_later(process, monkeypatch):
    with pytest.raises(RetryLater):
        go(monkeypatch, a_run(process), TrainingEnd(None, not_stopped, -9), after_start=process.drain)
    assert starts_at_save(process) == 1


def test_a_folder_that_cannot_be_cleaned_up_does_not_hide_the_jobs_error(process, monkeypatch):
    run = a_run(process)

    def refuse(_: JobFolder) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(JobFolder, "keep_best", refuse)
    with pytest.raises(JobError, match="CANCELLED"):
        go(monkeypatch, run, TrainingEnd(None, cancelled, 75))


@pytest.mark.parametrize(
    "end",
    [
        TrainingEnd(None, drained, -9),
        TrainingEnd(None, not_stopped, 75),
        LOCKED,
        LocalStackError("no more processes"),
    ],
)
def test_a_start_that_the_worker_ended_or_that_did_not_train_does_not_count(process, monkeypatch, end):
    monkeypatch.setattr(finetune_run, "LOCK_RETRY_S", 0.0)
    for _ in range(MAX_STARTS_AT_SAVE + 1):
        with pytest.raises(RetryLater):
            go(monkeypatch, a_run(process), end, TrainingEnd(None, drained, 75))
        assert starts_at_save(process) == 0


def test_unreported_starts_are_no_attempts_and_without_a_save_nothing_is_resumed(process, monkeypatch):
    for resumed in (None, None, False):
        with pytest.raises(RetryLater):
            go(monkeypatch, a_run(process), TrainingEnd(None, drained, 75), resumed=resumed)
    result, _ = go(monkeypatch, a_run(process), done(process))
    assert (result["num_attempts"], result["resumed"]) == (2, False)


def test_a_claim_that_runs_out_leaves_the_notes_to_the_next_worker(process, monkeypatch):
    with pytest.raises(RetryLater):
        go(monkeypatch, a_run(process), TrainingEnd(None, claim_run_out, -9))
    assert folder_of(process).notes(fingerprint(payload())).num_starts == 0


@pytest.mark.parametrize("stop", [not_stopped, claim_lost, cancelled])
def test_without_its_claim_a_job_is_interrupted_for_any_end_of_training(process, monkeypatch, stop):
    held = claim()
    end = done(process)._replace(stop=stop)
    lose = partial(setattr, held, "is_safe", False)
    with pytest.raises(RetryLater, match="claim could not be renewed"):
        go(monkeypatch, a_run(process), end, held=held, after_start=lose)


def test_a_job_that_is_late_or_cancelled_does_not_start(process):
    run = a_run(process)
    run.is_cancelled = True
    with pytest.raises(JobError, match="CANCELLED"):
        run.run(claim())
    with pytest.raises(JobError, match="DEADLINE"):
        a_run(process, submitted_at=1.0, deadline_s=5.0).run(claim())
    limited = process.settings.model_copy(update={"finetune_time_limit_s": 1.0})
    process.settings = limited
    with pytest.raises(JobError, match="KRONOS_FINETUNE_TIME_LIMIT_S"):  # of 2 s that it was trained before
        a_run(process).run(claim())
    process.settings = limited.model_copy(update={"finetune_time_limit_s": 9.0})
    with pytest.raises(JobError, match="its time limit of 1 s"):
        a_run(process, time_limit_s=1.0).run(claim())


def test_a_job_that_asked_for_a_gpu_gets_a_warning_if_there_is_none(process, monkeypatch):
    run = a_run(process, device="cuda:1")
    result, _ = go(monkeypatch, run, done(process))
    warning = "CUDA device 'cuda:1' requested but no GPU worker for finetuning is ready. Falling back to CPU."
    assert (result["device"], result["device_warning"]) == ("cpu", warning)
    assert result["warnings"] == [warning, "few bars"]
    assert FinetuneProgress.model_validate(run.progress).warnings == ("few bars",)
    with pytest.raises(JobError) as refused:
        a_run(process, device="cuda:1", allow_fallback=False).run(claim())
    assert refused.value.code == ErrorCode.NO_GPU_WORKER


JOB = parse_finetune_job({"name": "mine", "data": {"path": "a.csv"}}, Limits())


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("'/srv/models/.runs/ab/run/model' cannot be written", "'…/model' cannot be written"),
        ("no column 'a\x1b[31m\n'", "no column 'a\\x1b[31m\\n'"),
        ("no column " + "a" * 60_000, "no column " + "a" * (MAX_MESSAGE_CHARS - 11) + "…"),
    ],
)
def test_trainings_message_is_passed_on_escaped_and_without_paths(sent: str, expected: str) -> None:
    error = training_error({"event": "failed", "code": "DISK_FULL", "message": sent, "field": "clip"}, JOB)
    assert (error.code, error.field) == ("DISK_FULL", "config.clip")
    assert error.message == expected


def test_details_have_no_paths_either() -> None:
    event = {"event": "failed", "code": "DISK_FULL", "message": "", "details": {"folder": "/srv/models"}}
    assert training_error(event, JOB).details == {"folder": "…/models"}
