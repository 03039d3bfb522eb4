"""Choice and description of the device to compute on."""

import functools
import logging
import os
import platform
import re
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from kronos_model.devices import ACCEPTED_DEVICES, DEVICE_PATTERN
from kronos_model.devices.probe import NOT_AVAILABLE, TorchProbe, short_reason
from kronos_model.errors import DeviceError

DEVICE_VARIABLE = "KRONOS_DEVICE"
_CPU = torch.device("cpu")

ModuleT = TypeVar("ModuleT", bound=nn.Module)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """The description of a device, for logs and status.

    Attributes:
        name: product name, e.g. "NVIDIA H200".
        kind: "cpu", "cuda" or "mps".
        index: of the GPU, None for other devices.
        memory_total_bytes, memory_free_bytes: None if unknown; the host's memory for the CPU.
        utilisation_percent: of a GPU, None if unknown.
        versions: of "python", "torch", "cuda" or "rocm" (which PyTorch was built for) and "driver"; None if
            absent.
    """

    name: str
    kind: str
    index: int | None
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    utilisation_percent: int | None
    versions: dict[str, str | None]

    def as_dict(self) -> dict[str, Any]:
        """The description, JSON-compatible."""
        return asdict(self)


def resolve_device(
    requested: str | None = "auto", *, probe: TorchProbe | None = None
) -> tuple[torch.device, str | None]:
    """Choose the device for a request. A device is usable if it computes, not merely if it is listed.

    Args:
        requested: ``auto`` (the first usable of CUDA, MPS, CPU), ``cpu``, ``cuda`` (the first GPU),
            ``cuda:N`` or ``mps``. None reads ``KRONOS_DEVICE``, then means ``auto``.
        probe: the source of facts about the machine; PyTorch by default.

    Returns: the device, a GPU always with its index; and None, or a warning with the reason if it is not the
        requested one. Each warning is also logged, once a process. ``auto`` never warns: a broken GPU is then
        logged as information.

    Raises:
        DeviceError: any other name.
    """
    probe = probe or TorchProbe()
    kind, index = _parse(requested)
    if kind == "auto":
        return _best_device(probe), None
    device, warning = _named_or_cpu(kind, index, probe)
    if warning:
        warn_once(warning)
    return device, warning


def describe_device(device: torch.device, *, probe: TorchProbe | None = None) -> DeviceDescription:
    """Describe a device. If it has broken meanwhile, unknown values are None."""
    probe = probe or TorchProbe()
    versions = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "driver": probe.driver_version(),
    }
    index = device.index if device.type == "cuda" else None
    memory, utilisation = probe.memory_bytes(device), probe.utilisation_percent(device)
    return DeviceDescription(probe.name(device), device.type, index, *memory, utilisation, versions)


def move_to_device(
    module: ModuleT, device: torch.device, *, probe: TorchProbe | None = None
) -> tuple[ModuleT, torch.device, str | None]:
    """Move a module to a device. If that fails (out of memory, driver error), it stays whole on the CPU.

    Returns: the same module, its device, and None or a warning, which is also logged.
    """
    probe = probe or TorchProbe()
    failure = probe.failure(device)
    if failure is None:
        before = _tensors_of(module)
        try:
            return module.to(device), device, None
        except (RuntimeError, AssertionError, OSError) as error:
            failure = f"cannot hold the {type(module).__name__} ({short_reason(error)})"
            # Moving back does not undo a half-finished move: a GPU with an error no longer answers.
            for owner, name, tensor, data in before:
                tensor.data = data
                setattr(owner, name, tensor)
            empty_cache(device)
    warning = _fallback(probe.platform(device.type), str(device), failure)
    warn_once(warning)
    return module.to(_CPU), _CPU, warning


def empty_cache(device: torch.device) -> None:
    """Return the memory that PyTorch keeps for reuse to the GPU; other devices need nothing."""
    if device.type != "cuda":
        return
    try:
        with torch.cuda.device(device):
            torch.cuda.empty_cache()
    except (RuntimeError, AssertionError) as error:  # a failed GPU has no memory to return
        logger.debug("The cache of %s could not be emptied: %s", device, error)


def _tensors_of(module: nn.Module) -> list[tuple[nn.Module, str, torch.Tensor, torch.Tensor]]:
    """Owner, name, tensor and content of all parameters and buffers: ``to`` replaces them one by one."""
    return [
        (owner, name, tensor, tensor.data)
        for owner in module.modules()
        for named in (owner.named_parameters, owner.named_buffers)
        for name, tensor in named(recurse=False, remove_duplicate=False)
    ]


def _parse(requested: str | None) -> tuple[str, int | None]:
    """Kind and index of a device's name."""
    origin = ""
    if requested is None:
        # Compose files and shells pass an unset variable as an empty one.
        requested, origin = os.environ.get(DEVICE_VARIABLE) or "auto", f" in {DEVICE_VARIABLE}"
    match = re.fullmatch(DEVICE_PATTERN, requested) if isinstance(requested, str) else None
    if match is None:
        accepted = ", ".join(ACCEPTED_DEVICES)
        raise DeviceError(
            f"Device {requested!r}{origin} is not known. Use one of: {accepted} (N = 0, 1, …).",
            field="device",
            details={"requested": str(requested), "accepted": list(ACCEPTED_DEVICES)},
        )
    kind, index = requested.partition(":")[0], match[3]
    return kind, None if index is None else int(index)


def _best_device(probe: TorchProbe) -> torch.device:
    # Try the first GPU even if the count is 0: a broken driver may count none, and give the reason when used.
    candidates = [torch.device("cuda", index) for index in range(max(1, probe.cuda_device_count()))]
    for device in (*candidates, torch.device("mps")):
        failure = probe.failure(device)
        if failure is None:
            return device
        if failure != NOT_AVAILABLE:
            logger.info("Device '%s' is skipped: %s %s.", device, probe.platform(device.type), failure)
    return _CPU


def skipped_gpu(probe: TorchProbe) -> str | None:
    """Why ``auto`` does not choose the first GPU, None if there is none or it is usable."""
    failure = probe.failure(torch.device("cuda", 0))
    return None if failure in (None, NOT_AVAILABLE) else f"{probe.platform('cuda')} {failure}"


def _named_or_cpu(kind: str, index: int | None, probe: TorchProbe) -> tuple[torch.device, str | None]:
    """The device of a name ("cuda" means the first GPU), else another one and a warning."""
    if kind == "cpu":
        return _CPU, None
    requested = kind if index is None else f"{kind}:{index}"
    num_devices = probe.cuda_device_count() if kind == "cuda" else 0
    gpu = index if index is not None and index < num_devices else 0
    device = torch.device("mps") if kind == "mps" else torch.device("cuda", gpu)
    if failure := probe.failure(device):
        return _CPU, _fallback(probe.platform(kind), requested, failure)
    if index is None or index == device.index:
        return device, None
    name = probe.platform(kind)
    found = f"1 {name} device was" if num_devices == 1 else f"{num_devices} {name} devices were"
    return device, f"{name} device '{requested}' requested but only {found} found. Falling back to cuda:0."


def _fallback(platform: str, requested: str, failure: str) -> str:
    return f"{platform} device '{requested}' requested but {platform} {failure}. Falling back to CPU."


@functools.cache
def warn_once(warning: str) -> None:
    """Log a warning, once a process."""
    logger.warning("%s", warning)
