"""The folder of one run: its files, and the lock of the process that trains there. No torch."""

import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kronos_model.atomic_write import atomic_write, disk_errors
from kronos_model.errors import CheckpointError, DiskFull, FinetuningConfigError, RunLocked
from kronos_model.file_lock import lock
from kronos_model.finetuning.config import FinetuneConfig, StageName, parse_config

LOCK_WAIT_S: Final = 15.0
"""After a kill, the processes that load windows live on for some seconds, and hold the lock."""
LOCK_WAIT_OF_GROUP_S: Final = 120.0
"""NFS keeps the lock of a lost machine for its lease, by default 90 s."""
BYTES_PER_PARAMETER: Final = 4 * 5
"""A weight and two moments in the state, and a weight each in the best checkpoint and the result."""

_MAY_CHANGE: Final = {"training_device", "num_workers", "save_interval_s"}
"""Fields that may differ between two starts of one run, because they do not change its result."""


class RunFolder:
    """The folder of a run, and its files.

    config.json              its config
    data.json                the report on its data
    parent.json              the checkpoints that it started from
    metrics.jsonl            one line for each logged step and each epoch
    tokenizer/ predictor/    for each stage: state.safetensors, best/ (a checkpoint)
    checkpoint/              the result: model/, tokenizer/, metadata.json
    lock                     held by the process that trains
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.metrics = root / "metrics.jsonl"
        self.checkpoint = root / "checkpoint"

    def state(self, stage: StageName) -> Path:
        return self.root / stage / "state.safetensors"

    def best(self, stage: StageName) -> Path:
        return self.root / stage / "best"

    def best_so_far(self) -> Path | None:
        """The latest stage's best checkpoint; None before the first validation."""
        kept = [self.best(stage) for stage in ("predictor", "tokenizer")]
        return next((folder for folder in kept if folder.exists()), None)

    @contextmanager
    def locked(self, *, is_group: bool = False) -> Iterator[None]:
        """Hold the folder's lock; raises RunLocked if another process keeps it."""
        with disk_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / "lock").open("ab", buffering=0)  # nothing is left to write when it is closed
        with file:
            remedy = "wait for it, end it, or choose another folder"
            error = RunLocked(f"another process trains in {self.root}: {remedy}")
            lock(file, error, LOCK_WAIT_OF_GROUP_S if is_group else LOCK_WAIT_S)
            with disk_errors(self.root):
                file.truncate(0)
                file.write(f"{platform.node()}, process {os.getpid()}, {time.time()}".encode())
            # Left over from interrupted saves: only the holder of the lock writes here.
            for leftover in [*self.root.glob(".*.tmp"), *self.root.glob("*/.*.tmp")]:
                if leftover.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)
                else:
                    leftover.unlink(missing_ok=True)
            yield

    def holder(self) -> str:
        """The last process that locked the folder, or why it cannot be read."""
        try:
            return (self.root / "lock").read_text(encoding="utf-8")
        except OSError as error:
            return str(error)

    @property
    def is_begun(self) -> bool:
        """Whether a run was started here; ``begin`` writes this file last."""
        return (self.root / "config.json").exists()

    def check(self, config: FinetuneConfig) -> None:
        """Raise FinetuningConfigError if the run here has another config."""
        ours, theirs = comparable(config), comparable(parse_config(self.read("config.json")))
        for field in ours:
            if ours[field] != theirs[field]:
                raise FinetuningConfigError(
                    f"{self.root} holds a run with another {field}: choose another folder, or remove this "
                    "one to start again",
                    field=field,
                )

    def begin(self, config: FinetuneConfig, data: Mapping[str, Any], parent: Mapping[str, Any]) -> None:
        """Record the run in the folder, once its data are read and its start is loaded."""
        self.write("data.json", data)
        self.write("parent.json", parent)
        self.write("config.json", config.model_dump(mode="json"))

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write or replace a JSON file; raises DiskFull."""
        with disk_errors(self.root / name), atomic_write(self.root / name) as staging:
            text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
            staging.write_text(text + "\n", encoding="utf-8")

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file; raises CheckpointError."""
        try:
            content: dict[str, Any] = json.loads((self.root / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.root / name} cannot be read: {error}") from error
        return content

    def check_room(self, num_parameters: int) -> None:
        """Raise DiskFull if the files of that many parameters do not fit on the disk.

        Each file needs its room twice: the old one stays until the new one is complete.
        """
        needed = 2 * BYTES_PER_PARAMETER * num_parameters
        with disk_errors(self.root):
            free = shutil.disk_usage(self.root).free
        if free < needed:
            raise DiskFull(
                f"{self.root} has {free / 2**20:.0f} MiB free, but training needs {needed / 2**20:.0f} MiB: "
                "make room, or choose another folder",
                details={"free_bytes": free, "needed_bytes": needed},
            )


def comparable(config: FinetuneConfig) -> dict[str, Any]:
    """The fields that must be the same in all starts and processes of a run."""
    # The candles' fingerprint is compared instead of their path.
    return config.model_dump(mode="json", exclude={"data": {"path"}, **dict.fromkeys(_MAY_CHANGE, True)})
