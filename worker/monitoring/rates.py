"""How fast counts grew lately, for a worker's announcement."""

import threading
import time
from collections import deque
from collections.abc import Callable


class Rates:
    """The growth of some counts over the last ``window_s``, or little longer. May be shared by threads."""

    def __init__(self, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._lock = threading.Lock()
        self._noted: deque[tuple[float, ...]] = deque()

    def growth(self, *counts: float) -> tuple[float, ...]:
        """Note the present counts.

        Returns:
            The seconds since the window's start, or since the first call; then by how much each count grew.
        """
        with self._lock:
            latest = (self._clock(), *counts)
            self._noted.append(latest)
            while len(self._noted) > 1 and self._noted[1][0] <= latest[0] - self._window_s:
                self._noted.popleft()
            return tuple(now - before for now, before in zip(latest, self._noted[0], strict=True))
