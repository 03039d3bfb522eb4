"""Counts the processes that Linux killed for lack of memory. A SIGKILL alone does not show its cause."""

from pathlib import Path
from typing import Final

VMSTAT: Final = Path("/proc/vmstat")


def num_oom_kills(vmstat: Path = VMSTAT) -> int | None:
    """Processes that this machine's kernel has killed for lack of memory, in containers or outside.

    None if the system does not count them; Linux does since 4.13.
    """
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
