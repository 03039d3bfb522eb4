"""Ends a worker that cannot compute any more: its jobs go back to the queue, within bounded time.

``end_worker`` and ``end_child`` begin with Celery's own shutdown, which hands the jobs back. If that hangs,
the process ends after ``ENDING_GRACE_S``, and its jobs are delivered again after the visibility timeout.
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
    """End this process now, with the reason in the log, since a thread hangs and its jobs cannot go on.

    That thread may hold the log's lock, so the line is not waited for long.
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
