"""Counts the processes that Linux ended for lack of memory: a SIGKILL alone does not say why it came."""

from pathlib import Path
from typing import Final

VMSTAT: Final = Path("/proc/vmstat")


def num_oom_kills(vmstat: Path = VMSTAT) -> int | None:
    """Processes that this machine's kernel has ended for lack of memory, in containers or outside.

    Linux counts them since 4.13; None elsewhere.
    """
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
