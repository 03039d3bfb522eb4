"""``ProcessStack``: a signal while a child starts leaves no child behind."""

import os
import signal
from typing import Any

import pytest

from kronos_cli.stack import processes
from kronos_cli.stack.processes import ProcessStack


class InterruptedStart:
    """A child, during whose start Ctrl-C is pressed."""

    ended: list[str]

    def __init__(self, name: str, *_: Any, **__: Any) -> None:
        self.name = name
        os.kill(os.getpid(), signal.SIGINT)

    def terminate(self) -> None:
        self.ended.append(self.name)

    def stop(self) -> None:
        pass


def test_a_child_that_starts_when_ctrl_c_is_pressed_is_ended_too(monkeypatch):
    monkeypatch.setattr(processes, "ChildProcess", InterruptedStart)
    monkeypatch.setattr(InterruptedStart, "ended", [], raising=False)
    with pytest.raises(KeyboardInterrupt), ProcessStack() as stack:
        stack.start("worker", ["true"])
    assert InterruptedStart.ended == ["worker"]
