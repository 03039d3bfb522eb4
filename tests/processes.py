"""What tests of processes ask about them."""

import os
import time
from pathlib import Path


def await_end(pid: int, timeout_s: float = 60) -> bool:
    """Whether the process is gone within the time; a zombie that nobody has reaped counts as gone."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat")
            if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False
