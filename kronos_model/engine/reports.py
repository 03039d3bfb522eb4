"""What an engine reports of a step and of its load, and how long a device takes for a step. No torch."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from kronos_model.engine.generation import Generation

MAX_PHASES_AHEAD: Final = 2
"""Phases that the device has not finished when a step returns. One runs while the host prepares the next;
more would only delay new, cancelled and preempting jobs."""

EngineKind = Literal["native", "torch"]
"""What computes an engine's steps: our kernels for CPUs, or PyTorch. An engine's ``kind_reason`` says in a
sentence why a CPU does not use the kernels; None if it does, if PyTorch was asked for, and on a GPU."""


@dataclass(frozen=True)
class StepReport:
    """What one step computed, over all paths, and the seconds of each phase that the device has finished.

    A GPU may finish a phase only during a later step.
    """

    num_prefill_bars: int = 0
    num_bars: int = 0
    prefill_s: tuple[float, ...] = ()
    decode_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class EngineLoad:
    """Sample paths in slots and waiting for them, and how many slots there are without the spare ones."""

    running: int
    waiting: int
    slots: int


class Mark(Protocol):
    """A moment in a device's work: a ``torch.cuda.Event`` that was recorded."""

    def query(self) -> bool:
        """Whether the device has reached this moment."""

    def synchronize(self) -> None:
        """Wait until the device has reached this moment."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds until another mark that the device has reached."""


class HostMark:
    """For a device that has finished its work when a call returns."""

    def __init__(self) -> None:
        self._moment = time.monotonic()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end: "HostMark") -> float:
        return 1000 * (end._moment - self._moment)


class PhaseTimer:
    """Times phases that follow each other. Moments are those of ``time.monotonic``.

    Args:
        new_mark: Marks what the device has been sent so far.
    """

    def __init__(self, new_mark: Callable[[], Mark] = HostMark) -> None:
        self._new_mark = new_mark
        self._began: Mark = HostMark()
        self._running: deque[tuple[str, Mark, Mark, Iterable[Generation]]] = deque()
        self._finished_s: defaultdict[str, list[float]] = defaultdict(list)

    def begin_phase(self) -> None:
        self._began = self._new_mark()

    def end_phase(self, name: str | None, began: Iterable[Generation] = ()) -> None:
        """End a phase, and begin the next; these generations have their first bar with it.

        A phase without a name had no work.
        """
        begin, self._began = self._began, self._new_mark()
        if name is not None:
            self._running.append((name, begin, self._began, began))

    def collect(self) -> None:
        """Note the phases that the device has finished; wait for all but the newest ``MAX_PHASES_AHEAD``."""
        if len(self._running) > MAX_PHASES_AHEAD:
            self._running[-1 - MAX_PHASES_AHEAD][2].synchronize()
        finished = []
        while self._running and self._running[0][2].query():
            finished.append(self._running.popleft())
        now = time.monotonic()
        for name, begin, end, began in finished:
            self._finished_s[name].append(begin.elapsed_time(end) / 1000)
            moment = now - end.elapsed_time(finished[-1][2]) / 1000
            for generation in began:
                generation.timings.first_bar = generation.timings.first_bar or moment

    def take(self, name: str) -> tuple[float, ...]:
        """Seconds of each phase of this name that was finished since the last call."""
        return tuple(self._finished_s.pop(name, ()))
