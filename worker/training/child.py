"""The training process of a finetuning job: started, stopped, and started again if it was killed.

A separate process can really be stopped, and gives its memory back. It ends when its standard input closes,
at the latest with this process (see ``JsonChild``).
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from kronos_model.processes.json_child import ChildEnded, Event, JsonChild

log = logging.getLogger(__name__)

NICENESS: Final = 10
"""Lower priority than forecasts on the same machine."""
POLL_S: Final = 0.2
LOCK_RETRY_S: Final = 1.0
RUN_LOCKED: Final = "RUN_LOCKED"
EXIT_STOPPED: Final = 75  # as in kronos_model/finetuning/__main__.py


class Stop(StrEnum):
    """Why training must end early."""

    CANCELLED = "the job was cancelled"
    DEADLINE = "the job's deadline has passed"
    TIME_LIMIT = "KRONOS_FINETUNE_TIME_LIMIT_S has passed"
    DRAINED = "the worker shuts down"
    CLAIM = "its claim could not be renewed"


@dataclass(frozen=True)
class TrainingEnd:
    """How training ended.

    Attributes:
        event: The process's last event if it was ``done`` or ``error``, else None; see
            ``kronos_model/finetuning/reporting.py``.
        stop: Why it was stopped, or None.
        exit_status: Exit status of the last process; -N if signal N ended it.
    """

    event: Event | None
    stop: Stop | None
    exit_status: int


@dataclass(frozen=True)
class Training:
    """One job's training, by one process after another until it is done.

    Attributes:
        saved_at: Returns when the state was last saved, in any unit. A killed process is started again unless
            the one before it was killed at the same save.
        lock_wait_s: Seconds to wait while another process holds the run's folder.
        should_stop: Called several times a second. A reason stops the process, which may save first.
        must_end: Called as often. True kills the process at once.
        on_end: Called with the end of each process, even if it is started again.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    grace_s: int
    saved_at: Callable[[], int]
    lock_wait_s: float
    on_event: Callable[[Event], object]
    should_stop: Callable[[], Stop | None]
    must_end: Callable[[], bool]
    on_start: Callable[[], object] = lambda: None
    on_end: Callable[[TrainingEnd], object] = lambda _: None

    def run(self) -> TrainingEnd:
        """Train until training is done, failed, was killed twice at one save, or was stopped.

        Raises:
            LocalStackError: No process can be started on this machine.
        """
        killed_at: int | None = None
        locked_until = time.monotonic() + self.lock_wait_s
        while True:
            if (stop := self.should_stop()) is not None:
                return TrainingEnd(None, stop, 0)
            self.on_start()
            end = self._run_once()
            self.on_end(end)
            if end.event is not None and end.event.get("code") == RUN_LOCKED:
                if time.monotonic() > locked_until:
                    return end
                log.warning("another training process still uses the run's folder, trying again")
                time.sleep(LOCK_RETRY_S)
                continue
            if end.event is not None or end.stop is not None:
                return end
            if (saved_at := self.saved_at()) == killed_at:
                return end
            killed_at = saved_at
            log.warning("the training process ended with status %d, starting it again", end.exit_status)

    def _run_once(self) -> TrainingEnd:
        child = JsonChild(
            "training",
            self.command,
            env=self.env,
            cwd=self.cwd,
            error_sink=lambda name, line: log.info("%s: %s", name, line),
            grace_s=self.grace_s,
        )
        stop: Stop | None = None
        stopped_at = 0.0
        last: Event | None = None
        try:
            with suppress(OSError):  # the process has already ended
                os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
            while True:
                if (event := child.next_event(POLL_S)) is not None:
                    last = event
                    self.on_event(event)
                if stop is None and (stop := self.should_stop()) is not None:
                    log.info("stopping the training process: %s", stop)
                    child.terminate()
                    stopped_at = time.monotonic()
                if self.must_end() or (stop is not None and time.monotonic() - stopped_at > self.grace_s):
                    child.kill()
        except ChildEnded as ended:
            exit_status = ended.exit_status
        finally:
            child.stop()
        is_final = last is not None and last["event"] in ("done", "error")
        return TrainingEnd(last if is_final else None, stop, exit_status)
