"""A child process that exchanges JSON with its parent, one object a line; both ends of the pipe.

The parent sends messages to the child's standard input. The child sends events to its standard output: an
object whose ``event`` names its kind. Other lines of the child are text for people. Nothing is pickled.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kronos_model.processes.children import MAX_LINE_CHARS, POLL_S, ChildProcess, LineSink, own_environment

FIRST_TO_KILL: Final = "1000"
"""``oom_score_adj``: if memory runs out, Linux kills the child before its parent and other processes."""
ORPHAN_GRACE_S: Final = 1

Event = Mapping[str, Any]


class ChildEnded(Exception):
    """The child has ended, and all its events are read. A negative ``exit_status`` is a signal's number."""

    def __init__(self, name: str, exit_status: int) -> None:
        how = f"signal {-exit_status}" if exit_status < 0 else f"status {exit_status}"
        super().__init__(f"the {name} process ended with {how}")
        self.exit_status = exit_status


class JsonChild(ChildProcess):
    """The parent's end of the pipe. If memory runs out, Linux kills the child first.

    ``error_sink`` receives all text: stderr, and lines of stdout that are no events. ``grace_s`` is 0 if the
    child has nothing to save. Raises LocalStackError, as ``ChildProcess``.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        error_sink: LineSink = lambda name, line: None,
        grace_s: int = 0,
        max_line_chars: int = MAX_LINE_CHARS,
    ) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._text_sink = error_sink
        self._writer: threading.Thread | None = None
        super().__init__(
            name,
            command,
            env=own_environment() if env is None else env,
            cwd=cwd,
            holds_stdin=True,
            sink=self._take,
            error_sink=error_sink,
            grace_s=grace_s,
            orphan_grace_s=ORPHAN_GRACE_S,
            max_line_chars=max_line_chars,
        )
        with suppress(OSError):  # it has ended already, or this is not Linux
            Path(f"/proc/{self.pid}/oom_score_adj").write_text(FIRST_TO_KILL)

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message and return at once, since a child that hangs reads nothing."""
        given = json.dumps(message), self._writer
        name = f"{self.name}-input"
        self._writer = threading.Thread(target=self._write, args=given, name=name, daemon=True)
        self._writer.start()

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event; None if none comes within the time. Raises ChildEnded after the last one."""
        until = time.monotonic() + timeout_s
        while True:
            is_read = self.is_read  # read before the queue: no event may come between
            left_s = until - time.monotonic()
            with suppress(queue.Empty):
                return self._events.get(timeout=0 if is_read else max(0, min(POLL_S, left_s)))
            if is_read:
                assert self.exit_status is not None
                raise ChildEnded(self.name, self.exit_status)
            if self.exit_status is not None:
                self.kill()  # processes that it started may hold its pipes open
            if left_s <= 0:
                return None

    def end(self) -> None:
        """Kill it and wait for its end."""
        self.kill()
        self.stop()

    def _write(self, line: str, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        with suppress(OSError, ValueError):  # it has ended, which next_event reports
            self._stdin.write(f"{line}\n")
            self._stdin.flush()

    def _take(self, name: str, line: str) -> None:
        event = None
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            self._events.put(event)
        else:
            self._text_sink(name, line)


class JsonParent:
    """The child's end of the pipe. This process ends when its parent does.

    Create it before anything prints: from then on, other output to standard output goes to standard error.
    """

    def __init__(self) -> None:
        self._output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="parent", daemon=True).start()

    def next_message(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The parent's next message. Raises TimeoutError if none comes within the time."""
        try:
            return self._messages.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None

    def send(self, event: str, **content: Any) -> None:
        self._output.write(json.dumps({"event": event, **content}) + "\n")
        self._output.flush()

    def _read(self) -> None:
        # A file of its own: as Python ends, it closes sys.stdin, and would wait for this thread.
        with os.fdopen(os.dup(sys.stdin.fileno()), "rb") as stdin:
            for line in stdin:
                self._messages.put(json.loads(line))
            os._exit(0)
