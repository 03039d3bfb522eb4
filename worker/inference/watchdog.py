"""Notices an engine that hangs: a step that takes longer than any real one. No torch."""

import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

MAX_TICK_S: Final = 1.0
TICKS_PER_LIMIT: Final = 8
STALLED_SHARE: Final = 0.5
"""Of the limit: a step that takes longer makes the worker count as draining."""
FIRST_STEP_FACTOR: Final = 5
"""By how much longer an engine's first step may take: kernels are chosen, loaded and compiled in it."""
FROZEN_FACTOR: Final = 2
"""After how many limits a process ends in which no Python runs any more, not even this module's."""


class Watchdog:
    """Watches one thread's steps, from a thread of its own. Between steps nothing is counted.

    Time is counted tick by tick: a process that was stopped, or a machine that slept, is not taken for one
    that hangs.

    Args:
        limit_s: what a step may take.
        on_hang: called with the seconds that the step has taken; to end the process.
        on_change: called whenever ``is_stalled`` changes.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        limit_s: float,
        on_hang: Callable[[float], object],
        on_change: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s = limit_s
        self._on_hang = on_hang
        self._on_change = on_change
        self._tick_s = min(MAX_TICK_S, limit_s / TICKS_PER_LIMIT)
        self._clock = clock
        self._looked_at = clock()
        self._step: _Step | None = None
        self._is_armed = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kronos-watchdog", daemon=True)
        self.is_stalled = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._is_over.set()

    @contextmanager
    def step(self, *, is_first: bool = False) -> Iterator[None]:
        """Around what must not hang, on the thread that is watched."""
        self._step = _Step(self._limit_s * (FIRST_STEP_FACTOR if is_first else 1))
        try:
            yield
        finally:
            self._step = None

    def look(self) -> bool:
        """One tick; returns whether the step hangs, after ``on_hang``. The watchdog's thread calls it."""
        before, self._looked_at = self._looked_at, self._clock()
        step = self._step
        if step is not None:
            step.seen_s += min(self._looked_at - before, 2 * self._tick_s)
        self._see_to_frozen(step)
        self._note(step)
        if step is None or step.seen_s <= step.limit_s:
            return False
        self._on_hang(step.seen_s)
        return True

    def _watch(self) -> None:
        while not self._is_over.wait(self._tick_s) and not self.look():
            pass
        self._see_to_frozen(None)

    def _see_to_frozen(self, step: "_Step | None") -> None:
        """End the process where this thread does not come here again in time.

        A step that keeps the interpreter's lock stops every thread of Python, this one too; faulthandler has
        one of its own, which needs no lock. Its exit status is 1.
        """
        with suppress(OSError, ValueError, RuntimeError, AttributeError):  # a process without stderr has none
            if step is not None:
                faulthandler.dump_traceback_later(
                    FROZEN_FACTOR * step.limit_s, exit=True, file=sys.__stderr__ or sys.stderr
                )
            elif self._is_armed:
                faulthandler.cancel_dump_traceback_later()
        self._is_armed = step is not None

    def _note(self, step: "_Step | None") -> None:
        """Update ``is_stalled``."""
        is_stalled = step is not None and step.seen_s > STALLED_SHARE * step.limit_s
        if is_stalled != self.is_stalled:
            self.is_stalled = is_stalled
            self._on_change()


class _Step:
    """One step, and for how long it was seen to run."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.seen_s = 0.0
