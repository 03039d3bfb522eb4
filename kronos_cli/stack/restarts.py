"""Which processes of the one-machine stack are started again when they die, and how often."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from worker.inference.shutdown import EXIT_STATUS

MAX_RESTARTS: Final = 5
WINDOW_S: Final = 600.0
READY_MARK: Final = "ready: "
"""In the line with which a worker says that it takes jobs."""


class RestartBudget:
    """How often a child that died may be started again: ``max_restarts`` within ``window_s``."""

    def __init__(
        self, max_restarts: int, window_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_restarts = max_restarts
        self.window_s = window_s
        self._clock = clock
        self._spent: deque[float] = deque()

    def spend(self) -> bool:
        """Whether there is a restart left, which is then spent."""
        now = self._clock()
        while self._spent and now - self._spent[0] >= self.window_s:
            self._spent.popleft()
        if len(self._spent) >= self.max_restarts:
            return False
        self._spent.append(now)
        return True


class Restarts:
    """Decides by how a process ended, and whether it had been ready. May be shared by threads.

    One that crashed goes on with what Redis holds for it. One that refuses to start would refuse again, and
    one that got a signal to end has ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ready: set[str] = set()
        self._budgets: dict[str, RestartBudget] = {}

    def note_line(self, name: str, line: str) -> None:
        """A line that the process of this name printed."""
        if READY_MARK in line:
            with self._lock:
                self._ready.add(name)

    def allow(self, name: str, exit_status: int) -> bool:
        """Whether to start it again now; that is then counted.

        Args:
            exit_status: negative: the number of the signal that ended it.
        """
        with self._lock:
            was_ready = name in self._ready
            self._ready.discard(name)
            crashed = exit_status < 0 or exit_status == EXIT_STATUS or (was_ready and exit_status != 0)
            budget = self._budgets.setdefault(name, RestartBudget(MAX_RESTARTS, WINDOW_S, self._clock))
            return crashed and budget.spend()
