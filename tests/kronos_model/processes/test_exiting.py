"""How a process ends."""

import subprocess
import sys

SCRIPT = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 0, flush=True))  # runs last
from kronos_model.processes.exiting import collect_nothing_at_exit
collect_nothing_at_exit()
atexit.register(lambda: print(gc.get_freeze_count() > 0, flush=True))
"""


def test_what_is_there_at_the_end_is_not_looked_through() -> None:
    command = [sys.executable, "-c", SCRIPT]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == [
        "False",
        "True",
    ]
