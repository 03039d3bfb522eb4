"""The rounds of Celery's event loop, in which this worker's jobs go on."""

import time
from collections.abc import Callable
from typing import Final

from kombu.asynchronous import Hub


class Rounds:
    """Calls of the rounds of Celery's event loop, after messages were taken and before it waits."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self.once: list[Callable[[], object]] = []
        """Made once, by the next round of the loop itself: then it has subscribed to control commands."""
        self._last = 0.0

    def run(self, *, unless_within_s: float = 0.0) -> None:
        """Make the calls, unless the last round is not longer ago than this."""
        if time.monotonic() - self._last < unless_within_s:
            return
        while self.once and unless_within_s == 0.0:
            self.once.pop()()
        for call in self.calls:
            call()
        self._last = time.monotonic()


rounds: Final = Rounds()


def call_soon(hub: Hub, call: Callable[[], object] = lambda: None) -> None:
    """Have Celery's event loop make this call, and a round, soon. May be called on any thread.

    The loop of kombu 5.7 does not wake for a call from its own thread, but waits for up to a second.
    """
    hub._loop_thread = None  # type: ignore[attr-defined]  # else it is no call from another thread
    hub.call_soon(call)
