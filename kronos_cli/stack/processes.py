"""Child processes of one machine, which end together."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final, Self

from kronos_model.processes.children import POLL_S, ChildProcess, LineSink, own_environment

FLOWER_PORT: Final = 5555
GRACE_S: Final = 8
"""Seconds between SIGTERM and SIGKILL, so that the stack ends within 10 s."""


class ProcessStack:
    """Child processes that are stopped at once, then those that were adopted.

    Inside ``with`` the first SIGINT, SIGTERM or SIGHUP raises ``KeyboardInterrupt``. A further signal while
    they are ending kills them. Use it in the main thread. The lines of the children go to ``sink``.
    """

    def __init__(self, sink: LineSink | None = None) -> None:
        self._sink = sink
        self._started: dict[ChildProcess, Callable[[], ChildProcess]] = {}  # with what starts it again
        self._adopted: dict[ChildProcess, Callable[[], ChildProcess]] = {}
        self._previous: dict[int, Any] = {}
        self._ending = False
        self._is_starting = False

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # An ignored signal (nohup, a script's background job) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def start(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        *,
        grace_s: int = GRACE_S,
    ) -> ChildProcess:
        """Start a child in this process's environment, changed by ``variables``. Raises LocalStackError."""
        environment = own_environment(variables or {})
        start = partial(ChildProcess, name, command, env=environment, sink=self._sink, grace_s=grace_s)
        with self._uninterrupted():
            self._started[child := start()] = start
        return child

    def adopt(self, child: ChildProcess, restart: Callable[[], ChildProcess]) -> None:
        """Add a child that the others need. It was started elsewhere, by what ``restart`` calls."""
        self._adopted[child] = restart

    @property
    def children(self) -> list[ChildProcess]:
        """All children, those that the others need first."""
        return [*self._adopted, *self._started]

    def restart(self, dead: ChildProcess) -> ChildProcess:
        """Start a dead child again. Raises LocalStackError."""
        dead.stop()  # ends the processes that it left behind
        children = self._adopted if dead in self._adopted else self._started
        with self._uninterrupted():
            start = children.pop(dead)
            children[child := start()] = start
        return child

    def dead(self) -> ChildProcess | None:
        """A child that has ended by itself, or None."""
        return next((child for child in self.children if child.exit_status is not None), None)

    def wait(self) -> ChildProcess:
        """Wait until a child ends by itself, and return it. A signal raises KeyboardInterrupt."""
        while (child := self.dead()) is None:
            time.sleep(POLL_S)
        return child

    def stop(self) -> None:
        """End all children, the adopted ones last."""
        self._ending = True
        for children in (self._started, self._adopted):
            for child in children:
                child.terminate()
            for child in children:
                child.stop()
            children.clear()

    @contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """Act on a signal at the end of the block: a child that is not noted yet would be left running."""
        self._is_starting = True
        try:
            yield
        finally:
            self._is_starting = False
        if self._ending:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._ending:
            self._ending = True
            if not self._is_starting:
                raise KeyboardInterrupt
            return
        for child in self._started:  # what they need has little to do, and ends in order
            child.kill()


def log_of(child: ChildProcess) -> str:
    """The last lines that the child printed, indented."""
    return "\n".join(f"    {line}" for line in child.tail())
