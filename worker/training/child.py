"""The training process of a finetuning job: started, heard, stopped, and started again where it was killed.

It is a process of its own so that stopping it is real and its memory comes back. It never outlives this one:
it ends when its standard input closes, and the guard of ``processes/children.py`` sees to it that it does.
"""

import json
import logging
import os
import queue
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from kronos_model.processes.children import ChildProcess, LocalStackError

log = logging.getLogger(__name__)

NICENESS: Final = 10
"""Forecasts on the same machine come first."""
POLL_S: Final = 0.2
ORPHAN_GRACE_S: Final = 1
LOCK_RETRY_S: Final = 1.0
RUN_LOCKED: Final = "RUN_LOCKED"
EXIT_STOPPED: Final = 75  # of kronos_model/finetuning/__main__.py
FIRST_TO_KILL: Final = "1000"
"""Where memory runs out, Linux ends the training process, rather than this one or another's."""

Event = Mapping[str, Any]
"""What the training process tells, see ``kronos_model/finetuning/reporting.py``."""


class Stop(StrEnum):
    """Why training shall end before it is done."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    TIME_LIMIT = "time limit"
    DRAINED = "drained"
    LEASE = "lease"


@dataclass(frozen=True)
class TrainingEnd:
    """How it came to an end.

    Attributes:
        event: ``done`` or ``error`` as told by the process, else None.
        stop: why it was stopped, where it was and had not come to its end before.
        exit_status: of the last process; negative: the number of the signal that ended it.
    """

    event: Event | None
    stop: Stop | None
    exit_status: int


def training_command(config: str, output: str, device: str) -> list[str]:
    """The command line of a training process; paths are relative to its working folder."""
    # -P: a folder named kronos_model in the working folder is not this package.
    module = [sys.executable, "-P", "-m", "kronos_model.finetuning"]
    return [
        *module, "--config", config, "--output", output, "--device", device,
        "--progress", "json", "--supervised",
    ]  # fmt: skip


class Training:
    """One job's training, by one process after the other until it is done.

    Args:
        saved_at: tells when the state was last saved, in any unit. A process that was killed is started again
            unless the one before was killed at the same save.
        lock_wait_s: how long another process may still be in the run's folder.
        on_start: called before each start.
        on_end: called with the end of each process, also of one that is started again.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        grace_s: int,
        saved_at: Callable[[], int],
        lock_wait_s: float,
        on_start: Callable[[], object] = lambda: None,
        on_end: Callable[[TrainingEnd], object] = lambda _: None,
    ) -> None:
        self._command = command
        self._env = env
        self._cwd = cwd
        self._grace_s = grace_s
        self._saved_at = saved_at
        self._lock_wait_s = lock_wait_s
        self._on_start = on_start
        self._on_end = on_end

    def run(
        self,
        on_event: Callable[[Event], object],
        should_stop: Callable[[], Stop | None],
        must_end: Callable[[], bool] = lambda: False,
    ) -> TrainingEnd:
        """Until it is done, failed, was killed twice at one save, or was stopped as ``should_stop`` wanted.

        Args:
            on_event: called on this thread for each event.
            should_stop, must_end: asked several times a second; the second has it killed at once.

        Raises LocalStackError where this machine starts no process.
        """
        killed_at: int | None = None
        locked_until = time.monotonic() + self._lock_wait_s
        while True:
            if (stop := should_stop()) is not None:
                return TrainingEnd(None, stop, 0)
            self._on_start()
            end = self._run_once(on_event, should_stop, must_end)
            self._on_end(end)
            if end.event is not None and end.event.get("code") == RUN_LOCKED:
                if time.monotonic() > locked_until:
                    return end
                log.warning("another training process is still in the run's folder, trying again")
                time.sleep(LOCK_RETRY_S)
                continue
            if end.event is not None or end.stop is not None:
                return end
            saved_at = self._saved_at()
            if saved_at == killed_at:
                return end
            killed_at = saved_at
            log.warning("the training process ended with status %d, starting it again", end.exit_status)

    def _run_once(
        self,
        on_event: Callable[[Event], object],
        should_stop: Callable[[], Stop | None],
        must_end: Callable[[], bool],
    ) -> TrainingEnd:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        child = self._start(events)
        stop: Stop | None = None
        told_at = 0.0
        last: Event | None = None
        try:
            with suppress(OSError):  # it has ended already
                os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
            with suppress(OSError):  # likewise, or this is not Linux
                Path(f"/proc/{child.pid}/oom_score_adj").write_text(FIRST_TO_KILL)
            while True:
                is_over = child.has_told_all
                if (event := _next(events, 0 if is_over else POLL_S)) is not None:
                    last = event
                    on_event(event)
                elif is_over:
                    break
                if child.exit_status is not None:
                    child.kill()  # what it started may hold its pipes open
                if stop is None and (stop := should_stop()) is not None:
                    log.info("stopping the training process: %s", stop)
                    child.tell_to_end()
                    told_at = time.monotonic()
                if must_end() or (stop is not None and time.monotonic() - told_at > self._grace_s):
                    child.kill()
            exit_status = child.exit_status
        finally:
            child.stop()
        assert exit_status is not None, "a process that told all has ended"
        if last is None or last["event"] not in ("done", "error"):
            last = None
        return TrainingEnd(last, stop, exit_status)

    def _start(self, events: "queue.SimpleQueue[Event]") -> ChildProcess:
        try:
            return ChildProcess(
                "training",
                self._command,
                env=self._env,
                cwd=self._cwd,
                holds_stdin=True,
                sink=lambda _, line: _read(line, events),
                error_sink=lambda name, line: log.info("%s: %s", name, line),
                grace_s=self._grace_s,
                orphan_grace_s=ORPHAN_GRACE_S,
            )
        except (OSError, RuntimeError) as error:  # of its guard, and of the threads that read it
            raise LocalStackError(f"training cannot be started: {error}") from error


def _read(line: str, events: "queue.SimpleQueue[Event]") -> None:
    """What is no event is for people."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if isinstance(event, dict) and isinstance(event.get("event"), str):
        events.put(event)
    else:
        log.info("training: %s", line)


def _next(events: "queue.SimpleQueue[Event]", timeout_s: float) -> Event | None:
    try:
        return events.get(timeout=timeout_s) if timeout_s else events.get_nowait()
    except queue.Empty:
        return None
