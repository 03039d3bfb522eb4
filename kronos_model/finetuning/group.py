"""The processes of one training, on one machine or several: Accelerate, and what they share."""

import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import InitProcessGroupKwargs, broadcast, patch_environment
from torch import nn

from kronos_model.devices.probe import short_reason
from kronos_model.errors import FinetuningConfigError, PeerLost
from kronos_model.seeds import seed_from_text

GROUP_TIMEOUT: Final = timedelta(minutes=5)
"""The longest wait for a process on a machine that no longer answers, or that still loads its model."""

# At -1, as if they were not set, these make Accelerate start no process group.
_NO_LAUNCHER: dict[str, Any] = dict.fromkeys(
    ("LOCAL_RANK", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"), -1
)
MAX_BYTES: Final = 4096
MAX_SHOWN_CHARS: Final = 60
_SOURCE: Final = re.compile(r"\[/[^]]*\] *")
"""The place in PyTorch's source, before the reason."""


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


def difference(accelerator: Accelerator, values: Mapping[str, Any]) -> tuple[str, str] | None:
    """The name of a value that differs between processes, and both values; None if all agree.

    All processes have to call it, and all return the same.
    """
    own = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    texts = _gathered(accelerator, json.dumps([platform.node(), *(_short(text) for text in own.values())]))
    first_node, *first = json.loads(texts[0])
    for rank, text in enumerate(texts):
        node, *theirs = json.loads(text)
        for name, value, expected in zip(values, theirs, first, strict=True):
            if value != expected:
                places = f"process {rank} on {node} has {value}", f"process 0 on {first_node} has {expected}"
                return name, ", ".join(places)
    return None


def copy_from_first(accelerator: Accelerator, *modules: nn.Module) -> None:
    """Give the modules of all processes the weights of the first one's."""
    if accelerator.num_processes > 1:
        broadcast([module.to(accelerator.device).state_dict() for module in modules])


def lost_peer(accelerator: Accelerator, error: RuntimeError) -> PeerLost | None:
    """The error to raise instead if another process of the group ended, or its machine does not answer."""
    is_lost = isinstance(error, torch.distributed.DistError) or "gloo" in str(error)
    if accelerator.num_processes == 1 or not is_lost:
        return None
    reason = short_reason(RuntimeError(_SOURCE.sub("", str(error))))
    return PeerLost(
        f"process {accelerator.process_index} lost another process of this training, or its machine "
        f"({reason}); if that process failed, its own message says why. Training goes on from its last save "
        "when it is started again, with any number of machines"
    )


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}… ({seed_from_text(text):x})"


def _gathered(accelerator: Accelerator, text: str) -> list[str]:
    """The text of each process. No pickle, as ``gather_object`` uses it."""
    given = text.encode()
    padded = torch.zeros(1, MAX_BYTES, dtype=torch.uint8)
    padded[0, : len(given)] = torch.frombuffer(bytearray(given), dtype=torch.uint8)
    rows = accelerator.gather(padded.to(accelerator.device))  # (processes, MAX_BYTES)
    return [bytes(row).rstrip(b"\0").decode() for row in rows.tolist()]
