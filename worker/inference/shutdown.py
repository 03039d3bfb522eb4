"""Ends a worker that can no longer compute. Its jobs go back to the queue within bounded time.

``end_worker`` first tries Celery's own shutdown, which returns the jobs. If that hangs, the process ends
after ``ENDING_GRACE_S``, and its jobs are delivered again after the visibility timeout.
"""

import logging
import os
import signal
import threading
from typing import Final, NoReturn

from celery import signals

log = logging.getLogger(__name__)

ENDING_GRACE_S: Final = 30.0
EXIT_STATUS: Final = 70  # EX_SOFTWARE
LOG_FLUSH_S: Final = 5.0

# Celery sends it in signal handlers: a second signal on that thread would wait for a plain lock for ever.
signals.worker_shutting_down.lock = threading.RLock()  # type: ignore[attr-defined]


def end_worker() -> None:
    """Ask this process for a warm shutdown."""
    late = f"the worker did not shut down within {ENDING_GRACE_S:g} s: it ends now"
    timer = threading.Timer(ENDING_GRACE_S, end_at_once, (late,))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


def end_at_once(reason: str) -> NoReturn:
    """Log the reason and end this process now.

    A thread that hangs may hold the log's lock, so the wait for the log line is short.
    """
    line = threading.Thread(target=log.critical, args=("%s", reason), daemon=True)
    line.start()
    line.join(LOG_FLUSH_S)
    os._exit(EXIT_STATUS)
