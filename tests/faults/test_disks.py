"""Disks that are full or read-only while a model is trained: a coded error, and nothing saved is harmed.

The disks are real ones, small and in memory, which only root may mount.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.checkpoints import pretrained
from kronos_model.errors import DiskFull, OutOfMemory, TrainingStopped
from kronos_model.finetuning.config import FinetuneConfig
from kronos_model.finetuning.run import TrainingResult, finetune
from kronos_model.finetuning.run_folder import RunFolder
from kronos_model.finetuning.stages.saved_state import load_progress
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer
from tests.faults.fleet import Fleet, Worker
from tests.integration.conftest import ROOT
from tests.kronos_model.finetuning.tiny_runs import MODEL, TOKENIZER, tiny_config, write_candles
from tests.waiting import WAIT_S

DISK_KB = 65536
PARTS = {"tokenizer": KronosTokenizer, "predictor": Kronos}


class Disk:
    """A file system of its own that a test can fill, and make read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"
        path.mkdir()
        self._mount("-t", "tmpfs", "-o", f"size={DISK_KB}k", "tmpfs")

    def _mount(self, *arguments: str) -> None:
        tried = subprocess.run(
            ["mount", *arguments, str(self.path)], capture_output=True, text=True, check=False
        )
        if tried.returncode:
            self.path.rmdir()
            pytest.skip("a disk cannot be mounted: run as root with CAP_SYS_ADMIN")

    def fill(self, but_kb: int = 0) -> None:
        """Leave this much room, and no more."""
        with self._ballast.open("ab") as file:
            free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
            os.posix_fallocate(file.fileno(), 0, file.tell() + max(1, free - but_kb * 1024))

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def make_read_only(self, is_read_only: bool = True) -> None:
        subprocess.run(
            ["mount", "-o", "remount,ro" if is_read_only else "remount,rw", str(self.path)], check=True
        )

    def end(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk")
    yield disk
    disk.end()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    """Saves after every step."""
    data = write_candles(tmp_path_factory.mktemp("candles"))
    return tiny_config(data, save_interval_s=1e-6)


def losses(result: TrainingResult) -> list[float]:
    return [stage["best_loss"] for stage in result.metadata["metrics"].values()]


@pytest.fixture(scope="module")
def undisturbed(config: FinetuneConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], int]:
    """The losses and the number of events of an undisturbed run."""
    events: list[Any] = []
    result = finetune(config, tmp_path_factory.mktemp("run") / "run", listeners=[events.append])
    return losses(result), len(events)


def assert_intact(folder: RunFolder) -> None:
    """Check that every file can be loaded, and that no partial file is left."""
    for name, part in PARTS.items():
        if folder.state(name).exists():
            assert load_progress(folder.state(name)) is not None
        if folder.best(name).exists():
            part.from_pretrained(folder.best(name))
    leftovers = [*folder.root.glob("**/.*.tmp")]
    assert [one for one in leftovers if one.name != ".checkpoint.tmp"] == []


@pytest.mark.parametrize("room_kb", [0, 12])
def test_a_disk_that_fills_up_at_any_moment_ends_the_run_and_it_goes_on_later(
    config: FinetuneConfig, disk: Disk, undisturbed: tuple[list[float], int], at_length: bool, room_kb: int
):
    """With some room the writing fails in the middle of a file."""
    expected, num_events = undisturbed
    failed = 0
    for moment in range(1, num_events, 1 if at_length else 7):
        output = disk.path / f"run-{moment}"
        events: list[Any] = []

        def fill_then(event: Any, events: list[Any] = events, moment: int = moment) -> None:
            events.append(event)
            if len(events) == moment:
                disk.fill(but_kb=room_kb)

        try:
            finetune(config, output, listeners=[fill_then])
        except DiskFull:
            failed += 1
        assert_intact(RunFolder(output))
        disk.free()
        assert losses(finetune(config, output)) == pytest.approx(expected, rel=1e-5)
    assert failed >= 2


def test_a_run_is_not_taken_up_on_a_read_only_disk_and_is_later(
    config: FinetuneConfig, disk: Disk, undisturbed: tuple[list[float], int]
):
    output = disk.path / "run"
    events: list[Any] = []
    with pytest.raises(TrainingStopped):
        finetune(
            config, output, listeners=[events.append], should_stop=lambda: len(events) > undisturbed[1] // 2
        )
    disk.make_read_only()
    with pytest.raises(DiskFull, match="Read-only"):
        finetune(config, output)
    assert_intact(RunFolder(output))
    disk.make_read_only(False)
    assert losses(finetune(config, output)) == pytest.approx(undisturbed[0], rel=1e-5)


@pytest.mark.parametrize("num_saved", [0, 1, 2, 3])
def test_weights_that_safetensors_cannot_write_are_a_full_disk_too(
    config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_saved: int
):
    """safetensors wraps the system's errors, for best checkpoints and for the result."""
    saved = iter([True] * num_saved)

    def save_or_fail(*arguments: Any, **options: Any) -> None:
        if not next(saved, False):
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        save_file(*arguments, **options)

    monkeypatch.setattr(pretrained, "save_file", save_or_fail)
    with pytest.raises(DiskFull, match="No space left"):
        finetune(config, tmp_path / "run")
    assert_intact(RunFolder(tmp_path / "run"))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory\nframe #0"
        ),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_training_that_runs_out_of_memory_says_so(
    config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Kronos, "forward", fail)
    with pytest.raises(OutOfMemory, match="lower batch_size") as ended:
        finetune(config, tmp_path / "run")
    assert "\n" not in ended.value.message
    assert_intact(RunFolder(tmp_path / "run"))


FAULTS = ["full", pytest.param("read-only", marks=pytest.mark.at_length)]


def command(config: FinetuneConfig, folder: Path, output: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "config.json").write_text(config.model_dump_json())
    train = [sys.executable, "-P", "-m", "kronos_model.finetuning", "--progress", "json"]
    return subprocess.run(
        [*train, "--config", str(folder / "config.json"), "--output", str(output)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_the_command_ends_with_one_line(config: FinetuneConfig, disk: Disk, tmp_path: Path, fault: str):
    disk.fill() if fault == "full" else disk.make_read_only()
    ended = command(config, tmp_path, disk.path / "run")
    disk.make_read_only(False)
    assert ended.returncode == 1
    error = json.loads(ended.stdout.splitlines()[-1])
    assert (error["event"], error["code"]) == ("error", "DISK_FULL")
    assert len([line for line in ended.stderr.splitlines() if "DISK_FULL" in line]) == 1
    assert "Traceback" not in ended.stderr


# Jobs

STAGE = {"epochs": 1, "batch_size": 4, "windows_per_epoch": 8, "validation_windows": 4}
JOB = {
    "start": {"model": MODEL, "tokenizer": TOKENIZER},
    "data": {"lookback": 24, "pred_len": 8},
    "tokenizer": STAGE,
    "predictor": STAGE,
    "evaluation": {"windows": 0},
}


@pytest.fixture
def trainer(fleet: Fleet, disk: Disk, config: FinetuneConfig) -> Worker:
    """A worker with its model folder on the disk."""
    (data,) = config.data.path if not isinstance(config.data.path, str) else (config.data.path,)
    return fleet.start(
        KRONOS_ROLE="finetune", KRONOS_MODEL_FOLDER=str(disk.path), KRONOS_DATA_FOLDER=str(Path(data))
    )


def train(client: ForecastClient, job_id: str) -> Any:
    return client.finetune(JOB, name="mine", data="synthetic-0.csv", job_id=job_id).wait(WAIT_S)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_ends_in_a_coded_error_and_the_next_one_is_done(
    trainer: Worker, client: ForecastClient, disk: Disk, fault: str
):
    disk.fill() if fault == "full" else disk.make_read_only()
    with pytest.raises(JobError) as ended:
        train(client, f"{fault}-1")
    assert ended.value.code == ErrorCode.DISK_FULL, trainer.log.read_text()
    assert str(disk.path) not in ended.value.message
    disk.make_read_only(False)
    disk.free()
    assert train(client, f"{fault}-2").model.id == "mine@1"
    assert trainer.is_running
    assert "Traceback" not in trainer.log.read_text()
