"""A worker's load in the last seconds, for its status. No torch."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kronos_client.redis.routing import ANNOUNCEMENT_INTERVAL_S


@dataclass
class Second:
    """What happened in one second."""

    at_s: int
    num_bars: int = 0
    num_steps: int = 0
    waited_s: float = 0.0
    num_waits: int = 0


@dataclass(frozen=True)
class Recently:
    """Means over the last seconds; None if nothing happened.

    ``mean_batch_size`` is sample paths per step, ``queue_wait_s`` the time that a series waited for slots.
    """

    bars_per_s: float
    mean_batch_size: float | None
    queue_wait_s: float | None


class LoadWindow:
    """Sums of the last ``window_s`` whole seconds and the present one. May be shared by threads."""

    def __init__(
        self, window_s: int = ANNOUNCEMENT_INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._seconds: deque[Second] = deque(maxlen=window_s + 1)

    def add_step(self, num_bars: int) -> None:
        """Add a step that gave ``num_bars`` paths one bar each."""
        with self._lock:
            second = self._present()
            second.num_bars += num_bars
            second.num_steps += 1

    def add_wait(self, waited_s: float) -> None:
        """Add a series that waited so long for its slots."""
        with self._lock:
            second = self._present()
            second.waited_s += waited_s
            second.num_waits += 1

    def recently(self) -> Recently:
        """The means at this moment."""
        now = self._clock()
        first = int(now) - self._window_s
        with self._lock:
            seconds = [second for second in self._seconds if second.at_s >= first]
            num_bars = sum(second.num_bars for second in seconds)
            num_steps = sum(second.num_steps for second in seconds)
            waited_s = sum(second.waited_s for second in seconds)
            num_waits = sum(second.num_waits for second in seconds)
        elapsed_s = now - max(first, self._started)
        return Recently(
            bars_per_s=num_bars / elapsed_s if elapsed_s > 0 else 0.0,
            mean_batch_size=num_bars / num_steps if num_steps else None,
            queue_wait_s=waited_s / num_waits if num_waits else None,
        )

    def _present(self) -> Second:
        now_s = int(self._clock())
        if not self._seconds or self._seconds[-1].at_s != now_s:
            self._seconds.append(Second(now_s))
        return self._seconds[-1]
