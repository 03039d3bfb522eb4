"""The pool of a worker: Celery's threads (5.7), for all that ``ForecastJobs`` does not compute. No torch."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import click
from billiard.einfo import ExceptionInfo
from celery.concurrency.thread import TaskPool as ThreadsPool
from celery.utils import log as celery_log
from celery.worker import state
from click.core import ParameterSource

from worker.process import current

# Without Celery's own defaults, which click gets as a default map.
GIVEN = {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}
ROUND_S: Final = 0.01

log = logging.getLogger(__name__)


class WaitingThreadsPool(ThreadsPool):
    """A threads pool that accepts Celery's requests to kill a job, and ignores them.

    The result backend, which is called next, cancels a job that was revoked with ``terminate``.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._results: set[Future[object]] = set()

    def on_apply(self, *args: Any, **kwargs: Any) -> Any:
        # Celery replaces ``execute_using_pool`` of requests, but passes one of their methods.
        request = kwargs["accept_callback"].__self__
        hand_over = getattr(request, "hand_over", None)  # requests for forecasts have it
        if hand_over is not None and hand_over():
            return None
        result = super().on_apply(*args, **kwargs)
        result.terminate = lambda signal: None
        self._results.add(result.f)
        result.f.add_done_callback(lambda future: self._done(future, kwargs.get("error_callback")))
        return result

    def on_stop(self) -> None:
        """Let all jobs end: Celery's event loop has ended, so they go on here.

        A second Ctrl-C calls this in a signal handler, which may have interrupted the work on jobs. To do
        such work there could wait for a lock for ever. So they only go back; the loop ends after the handler,
        and stops the pool again.
        """
        process = current.process
        if vars(celery_log)["_in_sighandler"]:
            if process is not None:
                process.hand_back_at = time.monotonic()
            return
        while process is not None and (len(process.jobs) or self._results):
            if getattr(state, "should_terminate", None):  # the shutdown has become a cold one
                process.hand_back_at = min(process.hand_back_at, time.monotonic())
            process.run_jobs()
            time.sleep(ROUND_S)
        super().on_stop()

    def on_terminate(self) -> None:
        """A cold shutdown: running forecasts go back to the queue."""
        if current.process is not None:
            current.process.hand_back_at = time.monotonic()
        self.on_stop()

    def terminate_job(self, pid: object, signal: object = None) -> None:
        """Nothing: a thread cannot be killed."""

    def _done(self, future: Future[object], report: Callable[[ExceptionInfo], object] | None) -> None:
        """Report an error outside of Celery's tracer, so that it ends the job. Celery would drop it."""
        error = None if future.cancelled() else future.exception()
        try:
            if error is not None and report is not None:
                log.error("a task failed outside of Celery's tracer", exc_info=error)
                report(ExceptionInfo((type(error), error, error.__traceback__)))
        finally:  # a shutdown waits for those that are left
            self._results.discard(future)


def is_given(parameter: str) -> bool:
    """Whether an option of ``celery worker`` was given on the command line or in the environment."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(parameter) in GIVEN
