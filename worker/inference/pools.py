"""Celery's threads pool (5.7), as its tasks here need it. No torch."""

import logging
from collections.abc import Callable
from typing import Any

import click
from billiard.einfo import ExceptionInfo
from celery.concurrency.thread import TaskPool as ThreadsPool
from click.core import ParameterSource

# Not Celery's own defaults, which click calls a default map.
GIVEN = {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}

log = logging.getLogger(__name__)


def _report_untraced(future: Any, report: Callable[[Any], object]) -> None:
    """What fails before Celery's tracer has the task, or out of it, ends the job too: Celery drops it."""
    error = None if future.cancelled() else future.exception()
    if error is not None:
        log.error("a task failed outside of Celery's tracer", exc_info=error)
        report(ExceptionInfo((type(error), error, error.__traceback__)))


class WaitingThreadsPool(ThreadsPool):
    """Threads whose jobs Celery may want to end, though of a thread there is nothing to kill.

    On SIGQUIT and on a second SIGINT Celery (5.7) calls both of these, and waits for the jobs all the same. A
    job that was revoked with ``terminate`` is cancelled by the result backend, which is called next.
    """

    def on_apply(self, *args: Any, **kwargs: Any) -> Any:
        result = super().on_apply(*args, **kwargs)
        result.terminate = lambda signal: None
        report = kwargs.get("error_callback")
        if report is not None:
            result.f.add_done_callback(lambda future: _report_untraced(future, report))
        return result

    def terminate_job(self, pid: object, signal: object = None) -> None:
        """Nothing."""


def is_given(parameter: str) -> bool:
    """Whether an option of ``celery worker`` was given on the command line or in the environment."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(parameter) in GIVEN
