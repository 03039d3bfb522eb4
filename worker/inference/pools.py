"""Celery's threads pool (5.7), adapted to our tasks. No torch."""

import logging
from collections.abc import Callable
from typing import Any

import click
from billiard.einfo import ExceptionInfo
from celery.concurrency.thread import TaskPool as ThreadsPool
from click.core import ParameterSource

# Without Celery's own defaults, which click gets as a default map.
GIVEN = {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}

log = logging.getLogger(__name__)


def _report_untraced(future: Any, report: Callable[[Any], object]) -> None:
    """Report an error outside of Celery's tracer, so that it ends the job. Celery would drop it."""
    error = None if future.cancelled() else future.exception()
    if error is not None:
        log.error("a task failed outside of Celery's tracer", exc_info=error)
        report(ExceptionInfo((type(error), error, error.__traceback__)))


class WaitingThreadsPool(ThreadsPool):
    """A threads pool that accepts Celery's requests to kill a job, and ignores them.

    On SIGQUIT and on a second SIGINT Celery (5.7) calls both methods, and still waits for the jobs. The
    result backend, which is called next, cancels a job that was revoked with ``terminate``.
    """

    def on_apply(self, *args: Any, **kwargs: Any) -> Any:
        result = super().on_apply(*args, **kwargs)
        result.terminate = lambda signal: None
        report = kwargs.get("error_callback")
        if report is not None:
            result.f.add_done_callback(lambda future: _report_untraced(future, report))
        return result

    def grow(self, n: int = 1) -> None:
        """Refuse Celery's control command, whose sender gets this text; so does ``shrink``."""
        raise ValueError("this worker's threads only wait for its engine: start more workers instead")

    shrink = grow

    def terminate_job(self, pid: object, signal: object = None) -> None:
        """Nothing: a thread cannot be killed."""


def is_given(parameter: str) -> bool:
    """Whether an option of ``celery worker`` was given on the command line or in the environment."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(parameter) in GIVEN


def given(parameter: str) -> Any:
    """The value of an option of ``celery worker``; None if it was not given."""
    return click.get_current_context().params[parameter] if is_given(parameter) else None
