"""The NVIDIA driver of this machine, and whether it is new enough for PyTorch's CUDA. No torch."""

import functools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

VERSION_FILE: Final = Path("/proc/driver/nvidia/version")
QUERY: Final = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
QUERY_TIMEOUT_S: Final = 10.0
MIN_DRIVERS: Final = {11: 450, 12: 525, 13: 580}
"""Oldest driver by major version of CUDA on Linux, from NVIDIA's table of minor version compatibility."""
OLDER_CUDA_INDEX: Final = "https://download.pytorch.org/whl/cu126"


@functools.cache
def driver_version(file: Path = VERSION_FILE) -> str | None:
    """Version of the NVIDIA kernel driver, None if absent or unknown."""
    try:
        # "… Kernel Module  535.104.05 …", or "… Open Kernel Module for x86_64  580.65.06 …"
        text = file.read_text(encoding="utf-8", errors="replace").partition("Kernel Module")[2]
    except OSError:
        text = _query()
    match = re.search(r"(?<![\w.])[0-9]{3,}\.[0-9.]*[0-9]", text)
    return match.group() if match else None


def _query() -> str:
    """The answer of nvidia-smi. WSL and some containers have it, and no file."""
    if shutil.which(QUERY[0]) is None:
        return ""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def driver_problem(driver: str | None, cuda: str | None) -> str | None:
    """What the driver lacks for this version of CUDA, and the remedy; None if it is new enough or unknown."""
    if driver is None or cuda is None:
        return None
    needed = MIN_DRIVERS.get(int(cuda.partition(".")[0]))
    if needed is None or int(driver.partition(".")[0]) >= needed:
        return None
    return (
        f"driver {driver} found, but CUDA {cuda} of this PyTorch needs {needed} or newer: update the driver, "
        f"or install torch from {OLDER_CUDA_INDEX}"
    )
