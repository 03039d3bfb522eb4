"""The process that suspects are computed in, as its worker sees it: started, told, heard, killed."""

import json
import logging
import queue
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from kronos_model.processes.children import ChildProcess, LineSink
from kronos_model.processes.environment import PACKAGE_ROOT, own_environment

log = logging.getLogger(__name__)

FIRST_TO_KILL: Final = "1000"
"""Where memory runs out, Linux ends this process, rather than its worker or another's."""
ORPHAN_GRACE_S: Final = 1

Event = Mapping[str, Any]
"""``event`` is ``ready``, ``unavailable``, ``progress``, ``result`` or ``error``; see ``__main__.py``."""


class QuarantineChild(ChildProcess):
    """One such process. Each line to it and from it is a JSON object.

    Raises LocalStackError where this machine starts no process.
    """

    def __init__(self, command: list[str] | None = None) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        # -P: a folder named worker in the working folder is not this package.
        super().__init__(
            "quarantine",
            command or [sys.executable, "-P", "-m", "worker.inference.isolation"],
            env=own_environment({}),
            cwd=PACKAGE_ROOT,
            holds_stdin=True,
            sink=lambda _, line: self._hear(line),
            error_sink=lambda name, line: log.info("%s: %s", name, line),
            grace_s=0,
            orphan_grace_s=ORPHAN_GRACE_S,
        )
        with suppress(OSError):  # it has ended already, or this is not Linux
            Path(f"/proc/{self.pid}/oom_score_adj").write_text(FIRST_TO_KILL)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send it a line. On a thread: a process that hangs reads nothing, and nobody shall wait for it."""
        line = json.dumps(message)
        threading.Thread(target=self._write, args=(line,), name="quarantine-input", daemon=True).start()

    def next_event(self, timeout_s: float) -> Event | None:
        """What it told next, None where that is nothing within the time."""
        try:
            return self._events.get(timeout=timeout_s) if timeout_s else self._events.get_nowait()
        except queue.Empty:
            return None

    def end(self) -> None:
        """Kill it: there is nothing to be saved."""
        self.kill()
        self.stop()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, and who waits for it sees that
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def _read(self, pipe: IO[str], sink: LineSink | None) -> None:
        # Unlike the last lines of others, its results are not kept: they may be large.
        for line in pipe:
            if sink is not None:
                sink(self.name, line.rstrip("\n"))

    def _hear(self, line: str) -> None:
        """What is no event is for people."""
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            self._events.put(event)
        else:
            log.info("quarantine: %s", line)
