"""Whether Linux ended a process for want of memory: a SIGKILL tells not by itself who sent it."""

from pathlib import Path
from typing import Final

VMSTAT: Final = Path("/proc/vmstat")


def num_oom_kills(vmstat: Path = VMSTAT) -> int | None:
    """Processes that this machine's kernel has ended so since it started, within containers or outside.

    Linux counts that since 4.13; None where nobody does.
    """
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
