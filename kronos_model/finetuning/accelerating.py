"""Accelerate, set up for one device: one process, or several if torchrun started them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import InitProcessGroupKwargs, patch_environment

from kronos_model.errors import FinetuningConfigError

GROUP_TIMEOUT: Final = timedelta(minutes=5)
"""The longest wait for a process on a machine that no longer answers, or that still loads its model."""

# At -1, as if they were not set, these make Accelerate start no process group.
_NO_LAUNCHER: dict[str, Any] = dict.fromkeys(
    ("LOCAL_RANK", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"), -1
)


@contextmanager
def accelerated(device: torch.device, mixed_precision: str) -> Iterator[Accelerator]:
    """Yield an accelerator on this device.

    Under torchrun with several processes there is a process group. On CUDA it is NCCL's, and each process has
    the GPU of its local rank; on the CPU it is gloo's. Otherwise there is none.

    Raises FinetuningConfigError if the device cannot train in that precision, or cannot be shared.
    """
    if mixed_precision == "fp16" and device.type == "cpu":
        raise FinetuningConfigError(
            "mixed_precision: fp16 needs a GPU; use bf16 or no", field="mixed_precision"
        )
    is_group = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_group and device.type == "mps":
        raise FinetuningConfigError(
            "training_device: several processes cannot share mps; start one", field="training_device"
        )
    given = {} if is_group else dict(_NO_LAUNCHER)
    if not is_group and device.type != "cpu":
        given["ACCELERATE_TORCH_DEVICE"] = device
    backend = "nccl" if device.type == "cuda" else "gloo"
    with patch_environment(**given):
        accelerator = Accelerator(
            cpu=device.type == "cpu",
            mixed_precision=mixed_precision,
            kwargs_handlers=[InitProcessGroupKwargs(backend=backend, timeout=GROUP_TIMEOUT)]
            if is_group
            else [],
            step_scheduler_with_optimizer=False,
        )
    try:
        yield accelerator
    finally:
        accelerator.end_training()
        # Accelerate keeps its state in the class: a second run in this process may be on another device.
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
