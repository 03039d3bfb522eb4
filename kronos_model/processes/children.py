"""Child processes: their command line and environment; named, read line by line, never orphaned.

Each child runs in a session of its own, so Ctrl-C reaches this process only, and this process decides the
order in which its children end. A guard, one small shell for each child, ends it when this process is killed.
"""

import atexit
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final

PACKAGE_ROOT: Final = Path(__file__).resolve().parents[2]
POLL_S: Final = 0.05
NUM_TAIL_LINES: Final = 200
MAX_TAIL_CHARS: Final = 4096
"""Characters of a line that the tail keeps."""
MAX_LINE_CHARS: Final = 2**28
# Reads the child's process id, then waits for the end of its standard input, which comes when the process at
# the other end is gone for any reason. $1: seconds between SIGTERM and SIGKILL.
_GUARD = """
read -r child || exit 0
read -r _
kill -TERM "$child" 2>/dev/null
while [ "$1" -gt 0 ] && kill -0 -"$child" 2>/dev/null; do sleep 1; set -- "$(($1 - 1))"; done
kill -KILL -"$child" 2>/dev/null
"""
LineSink = Callable[[str, str], object]


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line. With -P, a folder of that name in the working folder is not imported instead."""
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment(settings: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """This process's environment for such a child, changed by ``settings`` (by variable name)."""
    paths = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # A setting and its _FILE variable exclude each other.
    files = {f"{name}_FILE" for name in settings}
    inherited = {name: value for name, value in os.environ.items() if name not in files}
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **settings}


def collect_nothing_at_exit() -> None:
    """Skip garbage collection at the end of this process; the operating system frees its memory.

    At exit the interpreter collects garbage several times. PyTorch's modules are 170,000 objects, so that
    takes most of a second. Files and threads end as usual. Only for the main program of a process.
    """
    atexit.register(gc.freeze)


class LocalStackError(RuntimeError):
    """A process on this machine could not start; the message has the remedy."""


class ChildProcess:
    """One running child and the last lines that it printed.

    Args:
        sink: Called with ``(name, line)`` for every line of stdout and stderr, on a thread of its own.
        error_sink: Called for the lines of stderr instead, on another thread; the tail then has only these.
        stdin: Text for the child's standard input, such as secrets that must not be on a command line.
        holds_stdin: Keep the child's standard input open: it closes when this process ends.
        grace_s: Seconds between SIGTERM and SIGKILL.
        orphan_grace_s: Seconds between the two if this process is gone; ``grace_s`` by default.
        max_line_chars: A child that prints a longer line is killed.
        umask: Of the files that the child creates; by default that of this process.

    Raises LocalStackError if the process, its guard or a thread cannot be started.
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
        max_line_chars: int = MAX_LINE_CHARS,
        umask: int = -1,
    ) -> None:
        self.name = name
        self._max_line_chars = max_line_chars
        self.grace_s = grace_s
        self._terminated_at: float | None = None
        self._is_stopped = False
        self._tail: deque[str] = deque(maxlen=NUM_TAIL_LINES)
        self._readers: list[threading.Thread] = []
        try:
            with contextlib.ExitStack() as undo:
                # The guard starts first: a kill between the two starts would leave the child alone.
                self._guard = _start_guard(grace_s if orphan_grace_s is None else orphan_grace_s)
                undo.callback(self._dismiss_guard)
                self._process = subprocess.Popen(
                    list(command),
                    env=dict(env) if env is not None else None,
                    cwd=cwd,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT if error_sink is None else subprocess.PIPE,
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,
                    umask=umask,
                )
                undo.callback(self._process.wait)
                undo.callback(self.kill)
                assert self._guard.stdin is not None
                self._guard.stdin.write(f"{self._process.pid}\n".encode())
                self._guard.stdin.flush()
                out = (self._process.stdout, sink, error_sink is None)
                for given in (out, (self._process.stderr, error_sink, True)):
                    if given[0] is not None:
                        reader = threading.Thread(
                            target=self._read, args=given, name=f"{name}-output", daemon=True
                        )
                        reader.start()
                        self._readers.append(reader)
                undo.pop_all()
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            raise LocalStackError(f"{name} cannot be started: {error}") from error
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        # A child that has ended already shows in its exit status.
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(stdin)
            self._stdin.flush()
        if not holds_stdin:
            self._close_stdin()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status: None while it runs; if negative, the number of the signal that ended it."""
        return self._process.poll()

    @property
    def is_read(self) -> bool:
        """Whether it has ended and its sinks have received all that it printed."""
        return self.exit_status is not None and not any(reader.is_alive() for reader in self._readers)

    def tail(self, num_lines: int = 15) -> list[str]:
        """The last lines that it printed; long lines are cut."""
        if self.exit_status is not None:
            self._join_readers()
        return list(self._tail)[-num_lines:]

    def terminate(self) -> None:
        """Send SIGTERM once and return at once; ``grace_s`` starts now."""
        if self._terminated_at is None:
            self._terminated_at = time.monotonic()
            # Only to the child: it ends its own children in its own order.
            self._process.terminate()

    def stop(self) -> int:
        """End it with SIGTERM, then after ``grace_s`` with SIGKILL; returns its exit status."""
        if self._is_stopped:
            return self._process.wait()
        self.terminate()
        assert self._terminated_at is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=max(0.0, self._terminated_at + self.grace_s - time.monotonic()))
        self.kill()
        status = self._process.wait()
        self._close_stdin()
        self._join_readers()
        self._dismiss_guard()
        self._is_stopped = True
        return status

    def kill(self) -> None:
        """Kill the child and all processes that it started."""
        # macOS answers EPERM instead of ESRCH for a group whose last member is a zombie.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self, pipe: IO[str], sink: LineSink | None, is_kept: bool) -> None:
        for line in iter(partial(pipe.readline, self._max_line_chars), ""):
            if len(line) == self._max_line_chars:
                self.kill()
                continue
            if is_kept:
                self._tail.append(line.rstrip("\n")[:MAX_TAIL_CHARS])
            if sink is not None:
                sink(self.name, line.rstrip("\n"))

    def _join_readers(self) -> None:
        for reader in self._readers:
            reader.join(timeout=1)

    def _close_stdin(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def _dismiss_guard(self) -> None:
        # Kill it before its standard input closes: the process group's id may belong to others by then.
        self._guard.kill()
        self._guard.communicate()


def _start_guard(grace_s: int) -> subprocess.Popen[bytes]:
    command = ["/bin/sh", "-c", _GUARD, "guard", str(grace_s)]
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)
