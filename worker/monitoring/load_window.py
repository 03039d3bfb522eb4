"""What a worker did in the last seconds, for its status. No torch."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kronos_client.redis.routing import ANNOUNCEMENT_INTERVAL_S


@dataclass
class Tally:
    """What happened in one second."""

    second: int
    num_bars: int = 0
    num_steps: int = 0
    waited_s: float = 0.0
    num_waits: int = 0


@dataclass(frozen=True)
class Recently:
    """Means over the last seconds; None where nothing happened of which there is a mean.

    ``mean_batch_size`` counts sample paths in a step, ``queue_wait_s`` the time a series waited for slots.
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
        self._tallies: deque[Tally] = deque(maxlen=window_s + 1)

    def add_step(self, num_bars: int) -> None:
        """A step that gave as many paths a bar."""
        with self._lock:
            tally = self._present()
            tally.num_bars += num_bars
            tally.num_steps += 1

    def add_wait(self, waited_s: float) -> None:
        """A series that had waited for its slots."""
        with self._lock:
            tally = self._present()
            tally.waited_s += waited_s
            tally.num_waits += 1

    def recently(self) -> Recently:
        """The means as of now."""
        now = self._clock()
        first = int(now) - self._window_s
        with self._lock:
            tallies = [tally for tally in self._tallies if tally.second >= first]
            num_bars = sum(tally.num_bars for tally in tallies)
            num_steps = sum(tally.num_steps for tally in tallies)
            waited_s = sum(tally.waited_s for tally in tallies)
            num_waits = sum(tally.num_waits for tally in tallies)
        elapsed_s = now - max(first, self._started)
        return Recently(
            bars_per_s=num_bars / elapsed_s if elapsed_s > 0 else 0.0,
            mean_batch_size=num_bars / num_steps if num_steps else None,
            queue_wait_s=waited_s / num_waits if num_waits else None,
        )

    def _present(self) -> Tally:
        second = int(self._clock())
        if not self._tallies or self._tallies[-1].second != second:
            self._tallies.append(Tally(second))
        return self._tallies[-1]
