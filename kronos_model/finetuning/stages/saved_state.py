"""The state of a stage in one file, so that a save is complete or absent.

Weights and the optimiser's moments are safetensors; counters are JSON in the file's header. Random draws need
no state: each step is seeded (``batches.py``).
"""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from kronos_model.atomic_write import atomic_write, disk_errors
from kronos_model.errors import CheckpointError

_HEADER = "kronos_training"


@dataclass
class Progress:
    """The progress of a stage.

    Attributes:
        epoch: the current epoch, from 0; after the last one the number of epochs.
        step: optimiser steps done, over all epochs.
        epoch_loss_sum, epoch_num_losses: sum and number of this epoch's training losses so far.
        best_loss, best_epoch: of validation; None before the first one.
        trained_s: seconds of training so far, over all starts.
    """

    epoch: int = 0
    step: int = 0
    epoch_loss_sum: float = 0.0
    epoch_num_losses: int = 0
    best_loss: float | None = None
    best_epoch: int | None = None
    is_finished: bool = False
    trained_s: float = 0.0


def load_progress(path: Path) -> Progress | None:
    """The saved progress; None if there is none. Raises CheckpointError."""
    return None if not path.exists() else Progress(**_header(path)["progress"])


@dataclass(frozen=True)
class StageState:
    """What training changes; ``scaler`` scales gradients in half precision."""

    module: nn.Module
    optimiser: torch.optim.Optimizer
    schedule: LRScheduler
    scaler: torch.amp.GradScaler | None = None

    def save(self, path: Path, progress: Progress) -> None:
        """Write or replace the file. If it cannot be written, the old one stays and DiskFull is raised."""
        tensors = {f"module.{name}": tensor for name, tensor in self.module.state_dict().items()}
        state: dict[str, Any] = self.optimiser.state_dict()
        for index, moments in state["state"].items():
            tensors |= {f"optimiser.{index}.{name}": tensor for name, tensor in moments.items()}
        for group in state["param_groups"]:
            del group["params"]
        header = {
            "progress": asdict(progress),
            "schedule": self.schedule.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "groups": state["param_groups"],
        }
        # Copies, because tensors that share memory cannot be saved.
        copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        with disk_errors(path, SafetensorError), atomic_write(path) as staging:
            save_file(copies, staging, metadata={_HEADER: json.dumps(header)})

    def load(self, path: Path) -> Progress:
        """Load what ``save`` wrote; returns the progress. Raises CheckpointError."""
        header = _header(path)
        weights: dict[str, Tensor] = {}
        moments: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        try:
            for key, tensor in load_file(path).items():
                part, _, name = key.partition(".")
                if part == "module":
                    weights[name] = tensor
                else:
                    index, _, moment = name.partition(".")
                    moments[int(index)][moment] = tensor
            self.module.load_state_dict(weights)
            own_groups = self.optimiser.state_dict()["param_groups"]
            groups = [own | saved for own, saved in zip(own_groups, header["groups"], strict=True)]
            self.optimiser.load_state_dict({"state": moments, "param_groups": groups})
            self.schedule.load_state_dict(header["schedule"])
            if self.scaler is not None and header["scaler"]:
                self.scaler.load_state_dict(header["scaler"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} does not fit this run: {error}") from error
        return Progress(**header["progress"])


def _header(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, Any] = json.loads(file.metadata()[_HEADER])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is no saved training state: {error}; remove it to start again"
        ) from error
    return header
