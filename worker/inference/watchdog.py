"""Detects an engine that hangs: a step that takes longer than any normal step. No torch."""

import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

MAX_TICK_S: Final = 1.0
TICKS_PER_LIMIT: Final = 8
STALLED_SHARE: Final = 0.5
"""A step that takes longer than this share of the limit makes the worker count as draining."""
FIRST_STEP_FACTOR: Final = 5
"""An engine's first step may take so much longer: it chooses, loads and compiles kernels."""
FROZEN_FACTOR: Final = 2
"""After so many limits, a process ends in which no Python code runs any more, not even this module's."""


@dataclass
class _Step:
    limit_s: float
    seen_s: float = 0.0


class Watchdog:
    """Times the steps of one thread, on its own thread.

    It counts time in ticks, so that a stopped process or a machine that slept does not count as hanging.

    Args:
        on_hang: Called with the seconds that the step has taken, to end the process.
        on_change: Called whenever ``is_stalled`` changes.
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
        self._ticked_at = clock()
        self._step: _Step | None = None
        self._is_armed = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kronos-watchdog", daemon=True)
        self.is_stalled = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()

    @contextmanager
    def step(self, *, is_first: bool = False) -> Iterator[None]:
        """Context of a step that must not hang; used on the watched thread."""
        self._step = _Step(self._limit_s * (FIRST_STEP_FACTOR if is_first else 1))
        try:
            yield
        finally:
            self._step = None

    def tick(self) -> bool:
        """Count one tick. If the step hangs, call ``on_hang`` and return True."""
        before, self._ticked_at = self._ticked_at, self._clock()
        step = self._step
        if step is not None:
            step.seen_s += min(self._ticked_at - before, 2 * self._tick_s)
        self._end_if_frozen(step)
        is_stalled = step is not None and step.seen_s > STALLED_SHARE * step.limit_s
        if is_stalled != self.is_stalled:
            self.is_stalled = is_stalled
            self._on_change()
        if step is None or step.seen_s <= step.limit_s:
            return False
        self._on_hang(step.seen_s)
        return True

    def _watch(self) -> None:
        while not self._is_over.wait(self._tick_s) and not self.tick():
            pass
        self._end_if_frozen(None)

    def _end_if_frozen(self, step: _Step | None) -> None:
        """End the process if this method is not called again in time.

        A step that holds the interpreter's lock stops all Python threads, including this one. faulthandler
        has its own thread, which needs no lock. It exits with status 1.
        """
        with suppress(OSError, ValueError, RuntimeError, AttributeError):  # a process without stderr
            if step is not None:
                faulthandler.dump_traceback_later(
                    FROZEN_FACTOR * step.limit_s, exit=True, file=sys.__stderr__ or sys.stderr
                )
            elif self._is_armed:
                faulthandler.cancel_dump_traceback_later()
        self._is_armed = step is not None
