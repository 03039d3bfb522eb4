"""The whole state of a stage in one file, so that a save is there whole or not at all.

Weights and the optimiser's moments as safetensors, counters as JSON in the file's header. Random draws need
no state: they are seeded anew at each step (``seeding.py``).
"""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from kronos_model.errors import CheckpointError, DiskFull

_HEADER = "kronos_training"


@dataclass
class Progress:
    """How far a stage is.

    Attributes:
        epoch: that is under way, from 0; all of them once the stage is finished.
        step: optimiser's steps done, over all epochs.
        epoch_loss_sum, epoch_num_losses: of the training losses of this epoch so far.
        best_loss, best_epoch: of validation; None before the first one.
        trained_s: seconds that training took so far, over all its starts.
    """

    epoch: int = 0
    step: int = 0
    epoch_loss_sum: float = 0.0
    epoch_num_losses: int = 0
    best_loss: float | None = None
    best_epoch: int | None = None
    is_finished: bool = False
    trained_s: float = 0.0


def save_state(
    path: Path,
    progress: Progress,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    schedule: LRScheduler,
) -> None:
    """Replace the file at once; raises DiskFull where it cannot be written, and then the old one stays."""
    tensors = {f"module.{name}": tensor for name, tensor in module.state_dict().items()}
    state: dict[str, Any] = optimiser.state_dict()
    for index, moments in state["state"].items():
        tensors |= {f"optimiser.{index}.{name}": tensor for name, tensor in moments.items()}
    header = {
        "progress": asdict(progress),
        "schedule": schedule.state_dict(),
        "groups": [
            {name: value for name, value in group.items() if name != "params"}
            for group in state["param_groups"]
        ],
    }
    # Copies, because tensors that share memory cannot be saved.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    with replacing(path) as staging:
        save_file(copies, staging, metadata={_HEADER: json.dumps(header)})


def load_progress(path: Path) -> Progress | None:
    """How far the saved state is; None where there is none. Raises CheckpointError."""
    return None if not path.exists() else Progress(**_header(path)["progress"])


def load_state(
    path: Path, module: nn.Module, optimiser: torch.optim.Optimizer, schedule: LRScheduler
) -> Progress:
    """Put the saved state into module, optimiser and schedule; raises CheckpointError."""
    header = _header(path)
    tensors: dict[str, Tensor] = {}
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  # it is no mapping
            tensors[name] = file.get_tensor(name)
    try:
        module.load_state_dict(_below("module", tensors))
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _below("optimiser", tensors).items():
            index, _, moment = name.partition(".")
            state.setdefault(int(index), {})[moment] = tensor
        own_groups = optimiser.state_dict()["param_groups"]
        groups = [
            own | saved | {"params": own["params"]}
            for own, saved in zip(own_groups, header["groups"], strict=True)
        ]
        optimiser.load_state_dict({"state": state, "param_groups": groups})
        schedule.load_state_dict(header["schedule"])
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} does not fit this run: {error}") from error
    return Progress(**header["progress"])


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what shall replace ``path`` at the end of the block; a failure leaves the old file.

    Raises DiskFull where writing fails.
    """
    staging = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield staging
        with staging.open("rb+") as file:
            os.fsync(file.fileno())  # a rename can reach the disk before the content does
        staging.replace(path)
    except (OSError, SafetensorError) as error:  # safetensors wraps the system's errors in its own
        raise DiskFull(f"{path} cannot be written: {error}; make room, or choose another folder") from error
    finally:
        staging.unlink(missing_ok=True)


def _header(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, Any] = json.loads(file.metadata()[_HEADER])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is no saved training state: {error}; remove it to begin anew"
        ) from error
    return header


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those whose name begins with the prefix and a point, without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
