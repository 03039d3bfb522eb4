"""A worker that can no longer compute ends. Each test runs its own process."""

import subprocess
import sys

from tests.waiting import WAIT_S
from worker.inference import shutdown as ending

PRELUDE = (
    "import signal, threading, time\nfrom worker.inference import shutdown as ending\n"
    "ending.ENDING_GRACE_S = {grace_s}\n"
)
STUCK = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nending.end_worker()\ntime.sleep(60)\n"
ORDERLY = "signal.signal(signal.SIGTERM, lambda *_: exit(3))\nending.end_worker()\ntime.sleep(60)\n"


def run(script: str, grace_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE.format(grace_s=grace_s) + script],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_a_process_that_ignores_the_signal_ends_after_the_grace():
    ended = run(STUCK, grace_s=0.05)
    assert ended.returncode == ending.EXIT_STATUS
    assert "it ends now" in ended.stderr


def test_a_process_that_ends_in_order_is_left_to_it():
    ended = run(ORDERLY, grace_s=30)
    assert (ended.returncode, ended.stderr) == (3, "")
