"""Files control the fate of a job, in a worker under test and in its children.

``WATCHED_ENGINE`` names a folder. An engine that is given a series of seed n notes that in ``submitted``.
Then it waits while there is a file ``hold-n``, raises where there is ``raise-n``, crashes by ``crash-n``.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SeriesRequest

FOLDER = Path(os.environ["WATCHED_ENGINE"])

submit = Engine.submit


def submit_watched(engine: Engine, request: SeriesRequest) -> Any:
    seed = request.sampling.seed
    with (FOLDER / "submitted").open("a") as file:
        file.write(f"{seed} {os.getpid()}\n")
    while (FOLDER / f"hold-{seed}").exists():
        time.sleep(0.02)
    if (FOLDER / f"raise-{seed}").exists():
        raise RuntimeError("an engine that dies, as the test asked for")
    if (FOLDER / f"crash-{seed}").exists():
        os.kill(os.getpid(), signal.SIGSEGV)
    return submit(engine, request)


Engine.submit = submit_watched  # type: ignore[method-assign]
