"""The rounds of Celery's event loop, in which this worker's jobs go on."""

import time
from collections.abc import Callable
from typing import Final


class Rounds:
    """Calls of the rounds of Celery's event loop, after messages were taken and before it waits."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self._last = 0.0

    def run(self, *, unless_within_s: float = 0.0) -> None:
        """Make the calls, unless the last round is not longer ago than this."""
        if time.monotonic() - self._last < unless_within_s:
            return
        for call in self.calls:
            call()
        self._last = time.monotonic()


rounds: Final = Rounds()
