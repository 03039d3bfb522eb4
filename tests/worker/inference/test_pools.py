"""A task that fails outside of Celery's tracer."""

import threading

import pytest
from billiard.einfo import ExceptionInfo

from tests.waiting import WAIT_S
from worker.inference.pools import WaitingThreadsPool


def apply(target) -> list[ExceptionInfo]:
    """The errors that Celery's request receives when the pool is done."""
    errors: list[ExceptionInfo] = []
    pool = WaitingThreadsPool(1)
    pool.on_apply(
        target,
        (),
        {},
        callback=lambda result: None,
        accept_callback=lambda pid, started: None,
        error_callback=errors.append,
    )
    pool.on_stop()
    return errors


def test_a_task_that_fails_outside_of_the_tracer_is_reported():
    def fail() -> None:
        raise UnicodeDecodeError("utf-8", b"x", 0, 1, "of the body")

    (info,) = apply(fail)
    assert isinstance(info.exception.exc, UnicodeDecodeError)


def test_a_memory_error_is_reported():
    """Celery's tracer raises it again."""

    def fail() -> None:
        raise MemoryError

    (info,) = apply(fail)
    assert isinstance(info.exception.exc, MemoryError)


@pytest.mark.parametrize("command", ["grow", "shrink"])
def test_threads_are_not_added_or_removed_by_control_commands(command):
    with pytest.raises(ValueError, match="start more workers instead"):
        getattr(WaitingThreadsPool(1), command)(1)


def test_a_traced_task_is_not_reported_again():
    done = threading.Event()
    assert apply(done.set) == []
    assert done.wait(WAIT_S)
