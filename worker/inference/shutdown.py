"""How a worker ends that cannot compute any more: its jobs go back to the queue, and within bounded time.

Each way but the last begins with Celery's own, which lets the jobs at hand be handed back, and has an end of
its own should that one hang: what is handed back by nobody is delivered again after the visibility timeout.
"""

import logging
import os
import signal
import threading
from typing import Any, Final, NoReturn

import billiard

log = logging.getLogger(__name__)

ENDING_GRACE_S: Final = 30.0
EXIT_STATUS: Final = 70  # EX_SOFTWARE
LAST_WORDS_S: Final = 5.0


def end_worker() -> None:
    """Ask this process for a warm shutdown."""
    _end_after_grace()
    os.kill(os.getpid(), signal.SIGTERM)


def end_child() -> None:
    """Have this prefork child leave after the job that it runs; its parent starts another.

    SIGTERM would end the child in the middle of the job, which then counts as lost. Without an inbox
    billiard (4.3) ends the child by itself, once the job's outcome is handed over.
    """
    _end_after_grace()
    child: Any = billiard.current_process()
    child.inq._reader.close()


def end_at_once(reason: str) -> NoReturn:
    """End this process now, with its reason in the log: where a thread hangs, none of its jobs can go on.

    That thread may have taken the log's lock along, so nobody waits long for the line to be written.
    """
    line = threading.Thread(target=log.critical, args=("%s", reason), daemon=True)
    line.start()
    line.join(LAST_WORDS_S)
    os._exit(EXIT_STATUS)


def _end_after_grace() -> None:
    timer = threading.Timer(ENDING_GRACE_S, _end_now)
    timer.daemon = True
    timer.start()


def _end_now() -> None:
    log.critical("the worker did not end by itself within %g s: it ends now", ENDING_GRACE_S)
    os._exit(EXIT_STATUS)
