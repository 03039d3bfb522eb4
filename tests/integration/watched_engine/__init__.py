"""For a worker's ``--include``: watches its engine, and by the ``PYTHONPATH`` those of its children."""

import os
from pathlib import Path

HERE = Path(__file__).parent

os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[2])])

from tests.integration.watched_engine import sitecustomize  # noqa: E402, F401
