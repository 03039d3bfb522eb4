"""First on a worker's ``PYTHONPATH``: a file holds the offset of its wall clock in seconds.

``JUMPING_CLOCK`` names the file. The clock of ``time.monotonic`` never jumps, as on a real machine.
"""

import os
import time
from pathlib import Path

FILE = Path(os.environ["JUMPING_CLOCK"])

true_time, true_time_ns = time.time, time.time_ns


def offset_s() -> float:
    try:
        return float(FILE.read_text() or 0)
    except FileNotFoundError:
        return 0.0


time.time = lambda: true_time() + offset_s()  # type: ignore[assignment]
time.time_ns = lambda: true_time_ns() + int(offset_s() * 1e9)  # type: ignore[assignment]
