"""What becomes of a task that fails where Celery's tracer does not have it."""

import threading

from billiard.einfo import ExceptionInfo

from tests.waiting import WAIT_S
from worker.inference.pools import WaitingThreadsPool


def apply(target) -> list[ExceptionInfo]:
    """What Celery's request is told, once the pool is done."""
    told: list[ExceptionInfo] = []
    pool = WaitingThreadsPool(1)
    pool.on_apply(
        target,
        (),
        {},
        callback=lambda result: None,
        accept_callback=lambda pid, started: None,
        error_callback=told.append,
    )
    pool.on_stop()
    return told


def test_a_task_that_fails_outside_of_the_tracer_is_told_of():
    def fail() -> None:
        raise UnicodeDecodeError("utf-8", b"x", 0, 1, "of the body")

    (told,) = apply(fail)
    assert isinstance(told.exception.exc, UnicodeDecodeError)


def test_memory_that_runs_out_is_told_of():
    """Celery's tracer does not keep that to itself."""

    def fail() -> None:
        raise MemoryError

    (told,) = apply(fail)
    assert isinstance(told.exception.exc, MemoryError)


def test_of_a_task_that_was_traced_nothing_more_is_told():
    done = threading.Event()
    assert apply(done.set) == []
    assert done.wait(WAIT_S)
