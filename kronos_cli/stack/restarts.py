"""Starts crashed processes again, each at most 5 times in 10 minutes. Runs the workers of one command."""

import logging
import os
import signal
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kronos_model.processes.children import POLL_S, ChildProcess
from worker.inference.forced_shutdown import EXIT_STATUS

MAX_RESTARTS: Final = 5
WINDOW_S: Final = 600.0
READY_MARKS: Final = ("ready: ", "Ready to accept connections", "Uvicorn running on", "Visit me at")
"""Parts of the lines that a worker, Redis, the API and Flower log when they are ready."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
RESTART_PAUSE_S: Final = 5.0


class Restarts:
    """The decision whether to restart, from the exit status and whether the process was ready.

    A crashed process is restarted, since Redis holds its jobs. A process that cannot start would fail again,
    and a process that exits with 0 was stopped on purpose.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ready: set[str] = set()  # by name; each change of it is atomic
        self._restarts: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_RESTARTS))

    def note_line(self, name: str, line: str) -> None:
        """Read a line that this process printed. Any thread may call this."""
        if any(mark in line for mark in READY_MARKS):
            self._ready.add(name)

    def are_ready(self, names: Iterable[str]) -> bool:
        """Whether each of these processes has logged that it is ready, and runs."""
        return self._ready.issuperset(names)

    def allow(self, name: str, exit_status: int) -> bool:
        """Whether to restart the process now. A restart is counted. A signal is a negative exit status."""
        was_ready = name in self._ready
        self._ready.discard(name)
        if exit_status >= 0 and exit_status != EXIT_STATUS and not (was_ready and exit_status != 0):
            return False
        now, restarts = self._clock(), self._restarts[name]
        if len(restarts) == MAX_RESTARTS and now - restarts[0] < WINDOW_S:
            return False
        restarts.append(now)
        return True


log = logging.getLogger(__name__)


class WorkerProcesses:
    """Several workers. One that crashes is started again after a pause.

    Args:
        starts: One function for each worker, which starts it.
    """

    def __init__(
        self,
        starts: Sequence[Callable[[], ChildProcess]],
        restarts: Restarts,
        *,
        pause_s: float = RESTART_PAUSE_S,
    ) -> None:
        self._starts = starts
        self._restarts = restarts
        self._pause_s = pause_s
        self._start_at = dict.fromkeys(range(len(starts)), 0.0)  # by index, of workers that do not run
        self._running: dict[int, ChildProcess] = {}
        self._statuses = [0] * len(starts)
        self._received: deque[int] = deque()
        self._sent: set[int] = set()

    def run(self) -> int:
        """Wait until all workers have ended, and return the worst exit status. Call it in the main thread.

        Raises LocalStackError if a worker cannot be started. Then the others have ended.
        """
        # An ignored signal (nohup, a script's background job) stays ignored.
        numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {n: signal.signal(n, lambda number, _: self._received.append(number)) for n in numbers}
        try:
            while self._running or self._start_at:
                self._start_due()
                self._forward()
                for index, child in list(self._running.items()):
                    if child.exit_status is not None:
                        self._end(index)
                time.sleep(POLL_S)
        finally:
            for child in self._running.values():
                child.terminate()
            for child in self._running.values():
                child.stop()
            for number, handler in previous.items():
                signal.signal(number, handler)
        return max(self._statuses)

    def _start_due(self) -> None:
        for index in [index for index, at in self._start_at.items() if time.monotonic() >= at]:
            del self._start_at[index]
            self._running[index] = self._starts[index]()

    def _forward(self) -> None:
        """Send received signals to all workers. After the first signal no worker is started again."""
        while self._received:
            self._sent.add(number := self._received.popleft())
            self._start_at.clear()
            for child in self._running.values():
                if child.exit_status is None:
                    os.kill(child.pid, number)

    def _end(self, index: int) -> None:
        child = self._running.pop(index)
        status = child.stop()  # also ends the processes that it started
        if status < 0:  # a signal that we sent before the process handled signals is no error
            self._statuses[index] = 0 if -status in self._sent else 128 - status
        else:
            self._statuses[index] = status
        if self._sent or status == 0:
            return
        if self._restarts.allow(child.name, status):
            self._start_at[index] = time.monotonic() + self._pause_s
            text = "%s ended with status %d: it is started again, at most %d times in %g minutes"
            log.warning(text, child.name, status, MAX_RESTARTS, WINDOW_S / 60)
        else:
            log.error("%s ended with status %d, and is not started again", child.name, status)
