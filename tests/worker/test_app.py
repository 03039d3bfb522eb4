"""What importing a worker's app does to its process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    sys.platform != "linux", reason="GNU's OpenMP is in PyTorch's wheels for Linux: run it there"
)
@pytest.mark.parametrize(("given", "num_spins"), [({}, 10_000), ({"OMP_WAIT_POLICY": "PASSIVE"}, 0)])
def test_openmp_threads_of_a_worker_spin_briefly(given, num_spins):
    """As OpenMP itself says: it reads its environment once, when torch is imported."""
    variables = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    environment = {name: value for name, value in os.environ.items() if name not in variables}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE"} | given
    command = [sys.executable, "-c", "import worker.app, torch"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr) == [str(num_spins)]
