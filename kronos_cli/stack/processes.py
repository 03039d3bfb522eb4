"""The child processes of one machine's stack. They end together, the last started first.

Ctrl-C reaches only this process (see ``children.py``), which ends its children in order.
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, Self

from kronos_model.processes.children import POLL_S, ChildProcess, LineSink
from kronos_model.processes.environment import own_environment


class ProcessStack:
    """Child processes that are stopped in reverse order of their start, and a group at once.

    Inside ``with`` the first SIGINT, SIGTERM or SIGHUP raises ``KeyboardInterrupt``. A further signal while
    they are ending kills them. Use it in the main thread. The lines of the children go to ``sink``.
    """

    def __init__(self, sink: LineSink | None = None) -> None:
        self._sink = sink
        self._children: list[ChildProcess] = []
        self._groups: dict[ChildProcess, str] = {}
        self._starts: dict[ChildProcess, Callable[[], ChildProcess]] = {}
        self._previous: dict[int, Any] = {}
        self._ending = False

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
        grace_s: int = 10,
        group: str | None = None,
    ) -> ChildProcess:
        """Start a child in this process's environment, changed by ``variables``. Raises LocalStackError.

        All children of a group get their signal before the stack waits for any of them.
        """
        environment = own_environment(variables or {})
        start = partial(ChildProcess, name, command, env=environment, sink=self._sink, grace_s=grace_s)
        self.adopt(child := start())
        self._starts[child] = start
        if group is not None:
            self._groups[child] = group
        return child

    def adopt(self, child: ChildProcess) -> None:
        """Add a child that was started elsewhere."""
        self._children.append(child)

    def can_restart(self, child: ChildProcess) -> bool:
        """Whether this stack started the child."""
        return child in self._starts

    def restart(self, dead: ChildProcess) -> ChildProcess:
        """Start a dead child again, in the same place of the order. Raises LocalStackError."""
        dead.stop()  # ends the processes that it left behind
        start = self._starts.pop(dead)
        self._children[self._children.index(dead)] = child = start()
        self._starts[child] = start
        if dead in self._groups:
            self._groups[child] = self._groups.pop(dead)
        return child

    def dead(self) -> ChildProcess | None:
        """The first child that has ended by itself, or None."""
        return next((child for child in self._children if child.exit_status is not None), None)

    def wait(self) -> ChildProcess:
        """Wait until a child ends by itself, and return it. A signal raises KeyboardInterrupt."""
        while (child := self.dead()) is None:
            time.sleep(POLL_S)
        return child

    def stop(self) -> None:
        """End all children, the last started first."""
        self._ending = True
        while self._children:
            last = self._children[-1]
            for child in self._children:
                if child in self._groups and self._groups[child] == self._groups.get(last):
                    child.terminate()
            last.stop()
            self._children.pop()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._ending:
            self._ending = True
            raise KeyboardInterrupt
        for child in reversed(self._children):
            child.kill()


def log_of(child: ChildProcess) -> str:
    """The last lines that the child printed, indented."""
    return "\n".join(f"    {line}" for line in child.tail())
