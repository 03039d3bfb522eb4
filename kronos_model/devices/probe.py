"""Facts about the machine's devices: the only module that queries CUDA, MPS and the host.

Other modules take a probe, so tests can try every combination of hardware on any machine.
"""

import platform
import re
from contextlib import suppress
from pathlib import Path

import psutil  # Accelerate needs it
import torch

from kronos_model.devices.driver import driver_problem, driver_version
from kronos_model.errors import is_out_of_memory

NOT_AVAILABLE = "not available"
NO_CUDA_BUILD = "driver {driver} found, but this PyTorch is built for the CPU: install requirements-cuda.txt"
# PyTorch's messages for a missing device, as opposed to a broken one.
_ABSENT = (
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "No HIP GPUs are available",
    "no CUDA-capable device",
    "not compiled with CUDA",
)
_MAX_REASON_CHARS = 120


class TorchProbe:
    """The machine's devices, through PyTorch, psutil and ``/proc``. Calls CUDA only for CUDA devices.

    No method raises an error for a device that is absent or broken.
    """

    def cuda_device_count(self) -> int:
        """Number of GPUs that the driver lists, usable or not."""
        return torch.cuda.device_count() if _cuda_is_built() else 0

    def failure(self, device: torch.device) -> str | None:
        """None if a tiny computation succeeds there, else "not available" or "not usable (reason)"."""
        if device.type == "cpu":
            return None
        if device.type == "cuda" and not _cuda_is_built():
            driver = self.driver_version()
            return NOT_AVAILABLE if driver is None else f"not usable ({NO_CUDA_BUILD.format(driver=driver)})"
        if device.type == "mps" and not torch.backends.mps.is_available():
            return NOT_AVAILABLE
        try:
            compute_on(device)
        except (RuntimeError, AssertionError, OSError) as error:
            if problem := device.type == "cuda" and driver_problem(self.driver_version(), torch.version.cuda):
                return f"not usable ({problem})"
            reason = short_reason(error)
            return NOT_AVAILABLE if any(text in reason for text in _ABSENT) else f"not usable ({reason})"
        return None

    def is_lost(self, device: torch.device) -> bool:
        """Whether a device that computed before no longer does. Without free memory it still counts."""
        if device.type == "cpu":
            return False
        try:
            compute_on(device)
        except Exception as error:  # noqa: BLE001  # a device that has failed may raise anything
            return not is_out_of_memory(error)
        return False

    def platform(self, kind: str) -> str:
        """The name of a kind of device: builds of PyTorch for ROCm call an AMD GPU "cuda" too."""
        return "ROCm" if kind == "cuda" and torch.version.hip else kind.upper()

    def name(self, device: torch.device) -> str:
        """Product name, e.g. "NVIDIA H200" or "AMD Instinct MI300X (ROCm)"."""
        try:
            if device.type == "cuda":
                suffix = " (ROCm)" if torch.version.hip else ""
                return torch.cuda.get_device_name(device) + suffix
        except (RuntimeError, AssertionError):
            return device.type
        cpu = _cpu_name()
        return cpu if device.type == "cpu" else f"{device.type} on {cpu}"

    def memory_bytes(self, device: torch.device) -> tuple[int | None, int | None]:
        """Total and free memory, None if unknown; the host's memory for the CPU."""
        try:
            if device.type == "cuda":
                free, total = torch.cuda.mem_get_info(device)
                return total, free
            if device.type == "mps":
                total = torch.mps.recommended_max_memory()
                return total, total - torch.mps.driver_allocated_memory()
        except (RuntimeError, AssertionError):
            return None, None
        memory = psutil.virtual_memory()
        return memory.total, memory.available

    def utilisation_percent(self, device: torch.device) -> int | None:
        """Share of the last second or less in which a GPU computed; None if it cannot be known.

        Needs the package nvidia-ml-py, or amdsmi for ROCm.
        """
        if device.type != "cuda":
            return None
        try:
            return torch.cuda.utilization(device)
        except Exception:  # noqa: BLE001  # each library has errors of its own, such as for a MIG instance
            return None

    def driver_version(self) -> str | None:
        """Version of the NVIDIA kernel driver, None if absent or unknown."""
        return driver_version()


def compute_on(device: torch.device) -> float:
    """The result, 8, of a tiny computation there. Raises what the device raises."""
    ones = torch.ones(2, 2, device=device)
    return (ones @ ones).sum().item()


def _cuda_is_built() -> bool:
    # A constant of the build: a CPU build never calls CUDA.
    return bool(torch.backends.cuda.is_built())  # type: ignore[no-untyped-call]


def short_reason(error: BaseException) -> str:
    """The first sentence of an error; PyTorch's errors have paragraphs."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].split(". ")[0].rstrip(".")[:_MAX_REASON_CHARS]


def _cpu_name() -> str:
    with suppress(OSError):  # not Linux
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if match := re.search(r"model name\s*:\s*(.+)", text):
            return match.group(1).strip()
    return platform.processor() or platform.machine()
