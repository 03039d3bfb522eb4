"""Which processes of one machine are started again when they die: 5 times in 10 minutes at most."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

from worker.inference.shutdown import EXIT_STATUS

MAX_RESTARTS: Final = 5
WINDOW_S: Final = 600.0
READY_MARK: Final = "ready: "
"""In the log line of a worker that takes jobs from now on."""


class Restarts:
    """Decides by how a process ended, and whether it had been ready. May be shared by threads.

    A process that crashed is started again: Redis holds its jobs. One that refuses to start would refuse
    again, and one that got a signal to end has ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ready: set[str] = set()
        self._restarts: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_RESTARTS))

    def note_line(self, name: str, line: str) -> None:
        """A line that the process of this name printed."""
        if READY_MARK in line:
            with self._lock:
                self._ready.add(name)

    def allow(self, name: str, exit_status: int) -> bool:
        """Whether to start the process again now; if so, that is counted.

        Args:
            name: of the process.
            exit_status: negative: the number of the signal that ended it.
        """
        with self._lock:
            was_ready = name in self._ready
            self._ready.discard(name)
            if exit_status >= 0 and exit_status != EXIT_STATUS and not (was_ready and exit_status != 0):
                return False
            now, restarts = self._clock(), self._restarts[name]
            if len(restarts) == MAX_RESTARTS and now - restarts[0] < WINDOW_S:
                return False
            restarts.append(now)
            return True
