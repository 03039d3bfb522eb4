"""The CPU cores that this process may use, and the threads that it computes with. No torch."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

CGROUP_OF_PROCESS: Final = Path("/proc/self/cgroup")
CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
SPIN_COUNT: Final = 10_000
"""Turns that a waiting thread of GNU's OpenMP, part of PyTorch's wheels, spins. Its default is 300,000."""


def num_cores(cgroup: Path = CGROUP_OF_PROCESS, root: Path = CGROUP_ROOT) -> int:
    """Whole cores by affinity and by the CPU quota of this process's container, at least 1.

    A fraction of a core is not used: threads wait for each other at the end of every operation, so one
    throttled thread delays all.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota(cgroup, root)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cgroup_quota(cgroup: Path = CGROUP_OF_PROCESS, root: Path = CGROUP_ROOT) -> float | None:
    """The CPU quota in cores: the smallest of this process's cgroup (version 2) and its parents."""
    try:
        lines = cgroup.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if path is None:
        return None
    # A process that was moved into this namespace from outside sees its cgroup above the root.
    folder = root if ".." in Path(path).parts else root / path
    around = [parent for parent in folder.parents if parent.is_relative_to(root)]
    quotas = [_read_quota(each / "cpu.max") for each in (folder, *around)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _read_quota(path: Path) -> float | None:
    """``cpu.max`` holds microseconds of CPU time a period and the period's length, or "max" for no limit."""
    try:
        quota, period = path.read_text(encoding="utf-8").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # not there, as in the root, or not of this form
        return None


def spin_briefly() -> None:
    """Let OpenMP's threads sleep soon when they wait for each other. To be called before torch is imported.

    By default they spin for milliseconds. If another process then holds the core of one of them, all others
    burn theirs. Variables that are set already stay.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


def intra_op_threads(
    wanted: int | None,
    num_processes: int,
    environment: Mapping[str, str] = os.environ,
    num_kept_free: int = 0,
) -> int | None:
    """Threads for one of ``num_processes`` processes that share the cores, except those kept free.

    The setting ``wanted`` takes precedence. None leaves the number to ``OMP_NUM_THREADS``.
    """
    if wanted is not None:
        return wanted
    if environment.get("OMP_NUM_THREADS"):
        return None
    return max(1, (num_cores() - num_kept_free) // num_processes)
