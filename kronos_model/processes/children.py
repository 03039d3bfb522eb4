"""Child processes: named, logged line by line, never orphaned; those of one machine's stack end together.

Each child runs in a session of its own, so that Ctrl-C reaches this process only and the order of ending is
decided here. A guard, one small shell beside each child, ends it when this process is killed.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

POLL_S = 0.05
NUM_TAIL_LINES = 200

# Reads the child's number, then waits for the end of its standard input, which comes when the process that
# holds the other end is gone, however it went. $1: seconds between SIGTERM and SIGKILL.
_GUARD = """
read -r child || exit 0
read -r _
kill -TERM "$child" 2>/dev/null
while [ "$1" -gt 0 ] && kill -0 -"$child" 2>/dev/null; do sleep 1; set -- "$(($1 - 1))"; done
kill -KILL -"$child" 2>/dev/null
"""

LineSink = Callable[[str, str], None]


class LocalStackError(RuntimeError):
    """A part of the one-machine stack could not start; the message says what to do."""


class ChildProcess:
    """One running child and what it printed last.

    :param sink: called with ``(name, line)`` for every line of stdout and stderr, on a thread of its own
    :param error_sink: called for the lines of stderr instead, on another thread
    :param stdin: sent to the child, for what must not stand on a command line
    :param holds_stdin: keep its standard input open until it ends, so that it hears when this process is gone
    :param grace_s: how long it may take to end after SIGTERM, before SIGKILL
    :param orphan_grace_s: likewise, once this process is gone; ``grace_s`` where left out
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str = "",
        holds_stdin: bool = False,
        sink: LineSink | None = None,
        error_sink: LineSink | None = None,
        grace_s: int = 10,
        orphan_grace_s: int | None = None,
    ) -> None:
        self.name = name
        self.grace_s = grace_s
        self._told_at: float | None = None
        self._is_stopped = False
        self._tail: deque[str] = deque(maxlen=NUM_TAIL_LINES)
        # First the guard: were it started second, a kill in between would leave the child alone.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", str(grace_s if orphan_grace_s is None else orphan_grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._process = subprocess.Popen(
                list(command),
                env=dict(env) if env is not None else None,
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if error_sink is None else subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            self._dismiss_guard()
            raise LocalStackError(f"{name} cannot be started: {error}") from error
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{self._process.pid}\n".encode())
        self._guard.stdin.flush()
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, to), name=f"{name}-output", daemon=True)
            for pipe, to in ((self._process.stdout, sink), (self._process.stderr, error_sink))
            if pipe is not None
        ]
        for reader in self._readers:
            reader.start()
        assert self._process.stdin is not None
        # A child that has died already shows itself by its exit status.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(stdin)
            self._process.stdin.flush()
        if not holds_stdin:
            self._close_stdin()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: the number of the signal that ended it."""
        return self._process.poll()

    @property
    def has_told_all(self) -> bool:
        """Whether it has ended and all that it printed has come to its sinks."""
        return self.exit_status is not None and not any(reader.is_alive() for reader in self._readers)

    def tail(self, num_lines: int = 15) -> list[str]:
        """The last lines it printed."""
        if self.exit_status is not None:
            self._join_readers()
        return list(self._tail)[-num_lines:]

    def tell_to_end(self) -> None:
        """Send SIGTERM, once, and do not wait; ``grace_s`` runs from now on."""
        if self._told_at is None:
            self._told_at = time.monotonic()
            # To the child alone: it knows in which order its own children end.
            self._process.terminate()

    def stop(self) -> int:
        """End it with SIGTERM, after ``grace_s`` with SIGKILL; returns its exit status."""
        if self._is_stopped:
            return self._process.wait()
        self.tell_to_end()
        assert self._told_at is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=max(0.0, self._told_at + self.grace_s - time.monotonic()))
        self.kill()
        status = self._process.wait()
        self._close_stdin()
        self._join_readers()
        self._dismiss_guard()
        self._is_stopped = True
        return status

    def kill(self) -> None:
        """End the child and whatever it started at once."""
        # macOS answers EPERM instead of ESRCH for a group whose last member is a zombie.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self, pipe: IO[str], sink: LineSink | None) -> None:
        for line in pipe:
            self._tail.append(line.rstrip("\n"))
            if sink is not None:
                sink(self.name, line.rstrip("\n"))

    def _join_readers(self) -> None:
        for reader in self._readers:
            reader.join(timeout=1)

    def _close_stdin(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _dismiss_guard(self) -> None:
        # Killed before its standard input closes: by then the group's number may be another's.
        self._guard.kill()
        self._guard.wait()
        assert self._guard.stdin is not None
        self._guard.stdin.close()
