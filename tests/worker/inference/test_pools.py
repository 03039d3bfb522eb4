"""The pool of a worker, for the tasks that need a thread."""

import math
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from billiard.einfo import ExceptionInfo
from celery.utils.log import in_sighandler

from tests.waiting import WAIT_S
from worker.inference.pools import WaitingThreadsPool
from worker.process import current


class FakeRequest:
    """The part of Celery's request that the pool uses."""

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Nothing."""


class NeedsNoThread(FakeRequest):
    def __init__(self, is_handed_over: bool) -> None:
        self.is_handed_over = is_handed_over

    def hand_over(self) -> bool:
        return self.is_handed_over


def apply(target: Callable[[], object], request: FakeRequest | None = None) -> list[ExceptionInfo]:
    """The errors that Celery's request receives when the pool is done."""
    errors: list[ExceptionInfo] = []
    pool = WaitingThreadsPool(1)
    pool.on_apply(
        target,
        (),
        {},
        callback=lambda result: None,
        accept_callback=(request or FakeRequest()).on_accepted,
        error_callback=errors.append,
    )
    pool.on_stop()
    return errors


def test_a_stop_in_a_signal_handler_only_sends_jobs_back(monkeypatch):
    """The handler may have interrupted the work on jobs, and then waited for its locks for ever."""
    busy = threading.Lock()
    process = SimpleNamespace(jobs=[1], hand_back_at=math.inf, run_jobs=busy.acquire)
    monkeypatch.setattr(current, "process", process)
    with busy, in_sighandler():
        WaitingThreadsPool(1).stop()
    assert process.hand_back_at <= time.monotonic()


@pytest.mark.parametrize("is_handed_over", [True, False])
def test_a_request_that_is_handed_over_gets_no_thread(is_handed_over):
    ran: list[bool] = []
    apply(lambda: ran.append(True), NeedsNoThread(is_handed_over))
    assert ran == ([] if is_handed_over else [True])


def test_a_task_that_fails_outside_of_the_tracer_is_reported():
    def fail() -> None:
        raise UnicodeDecodeError("utf-8", b"x", 0, 1, "of the body")

    (info,) = apply(fail)
    assert isinstance(info.exception.exc, UnicodeDecodeError)


def test_a_report_that_fails_too_does_not_hold_the_shutdown(monkeypatch):
    """Redis may refuse the acknowledgement again."""
    monkeypatch.setattr(current, "process", SimpleNamespace(jobs=[], run_jobs=lambda: None))
    pool = WaitingThreadsPool(1)

    def refuse(error: ExceptionInfo) -> None:
        raise ConnectionError

    def fail() -> None:
        raise ConnectionError

    callbacks = {"accept_callback": FakeRequest().on_accepted, "error_callback": refuse}
    pool.on_apply(fail, (), {}, callback=lambda result: None, **callbacks)
    stopping = threading.Thread(target=pool.on_stop, daemon=True)
    stopping.start()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()


def test_a_traced_task_is_not_reported_again():
    done = threading.Event()
    assert apply(done.set) == []
    assert done.wait(WAIT_S)
