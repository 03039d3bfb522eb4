"""Imported into a worker under test (``--include``): the first step of an engine raises, once a folder.

``DYING_ENGINE`` names the folder, in which a file remembers that an engine has died. ``HANGING_SHUTDOWN``
has the jobs of the engine never come back from their wait, so that a warm shutdown waits for them for ever.
"""

import os
import time
from pathlib import Path
from typing import Any

from kronos_model.engine.engine import Engine
from worker.inference import shutdown as ending
from worker.inference.engine_thread import EngineThread

MARKER = Path(os.environ["DYING_ENGINE"]) / "died"

step = Engine.step


def die_once(engine: Engine) -> Any:
    if MARKER.exists():
        return step(engine)
    MARKER.touch()
    raise RuntimeError("an engine that dies, as the test asked for")


Engine.step = die_once  # type: ignore[method-assign]

if "HANGING_SHUTDOWN" in os.environ:
    ending.ENDING_GRACE_S = 1.0  # type: ignore[misc]
    EngineThread.wait = lambda *_: time.sleep(3600)  # type: ignore[assignment, method-assign, func-returns-value]
