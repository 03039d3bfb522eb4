"""Imported into a worker under test (``--include``): each step of an engine takes ``PACE_S`` longer.

So a job lasts long while it takes little of the machine, and about as long on a busy one.
"""

import os
import time
from typing import Any

from kronos_model.engine.engine import Engine

PACE_S = float(os.environ["PACE_S"])

step = Engine.step


def paced_step(engine: Engine) -> Any:
    time.sleep(PACE_S)
    return step(engine)


Engine.step = paced_step  # type: ignore[method-assign]
