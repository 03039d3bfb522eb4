"""How many jobs a worker finished lately: clients estimate from it when a full queue has room again."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 60.0


class JobRate:
    """The growth of a worker's count of ended jobs over the last ``window_s``. May be shared by threads."""

    def __init__(self, window_s: float = WINDOW_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: deque[tuple[float, int]] = deque()

    def observe(self, num_jobs: int) -> float:
        """Note the present count. Returns jobs per second since the window's start or the first count."""
        with self._lock:
            now = self._clock()
            self._counts.append((now, num_jobs))
            while self._counts[0][0] < now - self._window_s:
                self._counts.popleft()
            since, num_then = self._counts[0]
        return (num_jobs - num_then) / (now - since) if now > since else 0.0
