"""The exit of a process skips garbage collection."""

import subprocess
import sys

SCRIPT = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 0, flush=True))  # runs last
from kronos_model.processes.children import collect_nothing_at_exit
collect_nothing_at_exit()
atexit.register(lambda: print(gc.get_freeze_count() > 0, flush=True))
"""


def test_objects_are_frozen_at_exit() -> None:
    command = [sys.executable, "-c", SCRIPT]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == [
        "False",
        "True",
    ]
