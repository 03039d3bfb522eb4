"""The child processes of one machine's stack: they end together, the last started first.

Ctrl-C reaches this process only (see ``children.py``); the order of ending is decided here.
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from kronos_model.processes.children import POLL_S, ChildProcess, LineSink


class ProcessStack:
    """Children that live and end together: stopped in reverse order of their start, a group at once.

    Inside ``with`` the first SIGINT, SIGTERM or SIGHUP raises ``KeyboardInterrupt``, and so leads to the end;
    a further one while they are ending kills them. Use it from the main thread.
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
            # What is ignored (nohup, a background job of a script) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        grace_s: int = 10,
        group: str | None = None,
    ) -> ChildProcess:
        """Start a child; its lines go to the stack's sink.

        Args:
            group: Children of one group get their signal together, before the stack waits for any of them.

        Raises:
            LocalStackError: It cannot be started.
        """

        def start() -> ChildProcess:
            return ChildProcess(name, command, env=env, stdin=stdin, sink=self._sink, grace_s=grace_s)

        child = start()
        self.adopt(child)
        self._starts[child] = start
        if group is not None:
            self._groups[child] = group
        return child

    def can_restart(self, child: ChildProcess) -> bool:
        """Whether this stack started it, and knows how."""
        return child in self._starts

    def restart(self, dead: ChildProcess) -> ChildProcess:
        """Start a child of this stack again after it has ended, in the same place.

        Raises:
            LocalStackError: It cannot be started.
        """
        dead.stop()  # what it may have left running, and its guard
        start = self._starts.pop(dead)
        child = start()
        self._children[self._children.index(dead)] = child
        self._starts[child] = start
        if dead in self._groups:
            self._groups[child] = self._groups.pop(dead)
        return child

    def adopt(self, child: ChildProcess) -> None:
        """Look after a child that was started elsewhere, as after the stack's own."""
        self._children.append(child)

    def dead(self) -> ChildProcess | None:
        """The first child that has ended by itself, if any."""
        return next((child for child in self._children if child.exit_status is not None), None)

    def wait(self) -> ChildProcess:
        """Wait until a child ends by itself, and return it.

        Raises:
            KeyboardInterrupt: A signal asks for the end.
        """
        while (child := self.dead()) is None:
            time.sleep(POLL_S)
        return child

    def stop(self) -> None:
        """End all, the last started first."""
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
