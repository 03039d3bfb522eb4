"""Decides which dead processes are started again: at most 5 times in 10 minutes each."""

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

from worker.inference.shutdown import EXIT_STATUS

MAX_RESTARTS: Final = 5
WINDOW_S: Final = 600.0
READY_MARKS: Final = ("ready: ", "Ready to accept connections", "Uvicorn running on", "Visit me at")
"""Parts of the lines that a worker, Redis, the API and Flower log when they are ready."""


class Restarts:
    """The decision whether to restart, from the exit status and whether the process was ready.

    A crashed process is restarted, since Redis holds its jobs. A process that cannot start would fail again,
    and a process that exits with 0 was stopped on purpose.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ready: set[str] = set()  # by name; each change of it is atomic
        self._restarts: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_RESTARTS))

    def note_line(self, name: str, line: str) -> None:
        """Read a line that this process printed. Any thread may call this."""
        if any(mark in line for mark in READY_MARKS):
            self._ready.add(name)

    def allow(self, name: str, exit_status: int) -> bool:
        """Whether to restart the process now. A restart is counted. A signal is a negative exit status."""
        was_ready = name in self._ready
        self._ready.discard(name)
        if exit_status >= 0 and exit_status != EXIT_STATUS and not (was_ready and exit_status != 0):
            return False
        now, restarts = self._clock(), self._restarts[name]
        if len(restarts) == MAX_RESTARTS and now - restarts[0] < WINDOW_S:
            return False
        restarts.append(now)
        return True
