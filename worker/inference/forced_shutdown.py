"""Ends a worker within bounded time.

``end_worker``, for one that can no longer compute, first tries Celery's own shutdown, which returns the
jobs. If that hangs, the process ends after ``ENDING_GRACE_S``, and its jobs are delivered again after the
visibility timeout. ``ShutdownLimit`` ends a process whose shutdown hangs although no job is left.
"""

import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
from typing import Final, NoReturn

from celery import signals
from celery.worker import state

from worker.process import current

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


class ShutdownLimit:
    """Ends a process that still runs ``ENDING_GRACE_S`` after its shutdown had no job left."""

    def __init__(self) -> None:
        self._idle_since = math.inf  # by time.monotonic

    def check(self) -> None:
        """Called about once a second."""
        now = time.monotonic()
        has_jobs = bool(current.process and len(current.process.jobs)) or bool(state.active_requests)
        self._idle_since = min(self._idle_since, now) if current.is_draining and not has_jobs else math.inf
        if now > self._idle_since + ENDING_GRACE_S:
            end_at_once(
                f"the shutdown hangs: no job is left for {ENDING_GRACE_S:g} s; the process ends now. "
                f"Where its threads are:\n{_stacks()}"
            )


def _stacks() -> str:
    """Where each thread is; the newest comes last."""
    frames = sys._current_frames()
    stacks = {at.name: frames[at.ident] for at in threading.enumerate() if at.ident in frames}
    return "\n".join(f"{name}:\n{''.join(traceback.format_stack(frame))}" for name, frame in stacks.items())


def end_at_once(reason: str) -> NoReturn:
    """Log the reason and end this process now.

    A thread that hangs may hold the log's lock, so the wait for the log line is short.
    """
    line = threading.Thread(target=log.critical, args=("%s", reason), daemon=True)
    line.start()
    line.join(LOG_FLUSH_S)
    os._exit(EXIT_STATUS)
