"""One suspect that is computed alone in a process."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from celery.exceptions import Ignore

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.results import ForecastProgress
from kronos_client.redis.job_store import Receipt
from kronos_model.processes.json_child import ChildEnded
from worker.inference.forecast_process import ForecastProcess
from worker.inference.isolation.isolation import ChildUnavailable, RetryLater

log = logging.getLogger(__name__)

POSTPONE_DELAY_S: Final = 5.0
MAX_POSTPONED: Final = 12
LATE_GRACE_S: Final = 2.0
"""The isolated process reports a late job itself. The worker waits this long for that, then ends it."""
MAX_LOST_ALONE: Final = 2


class IsolatedRun:
    """A suspect, used as a ``Computation``: a thread waits for the isolated process, as its ``JobContext``.

    Args:
        deadline_s: Seconds left for the job, or None.
        on_change: Called, on any thread, when ``advance`` may go on.
    """

    def __init__(
        self,
        process: ForecastProcess,
        job_id: str,
        tag: str,
        job: Mapping[str, Any],
        receipt: Receipt,
        queue: str,
        deadline_s: float | None,
        on_change: Callable[[], object],
    ) -> None:
        self._is_cancelled = False
        self._process, self._job_id, self._tag = process, job_id, tag
        self._late_at = math.inf if deadline_s is None else time.monotonic() + deadline_s + LATE_GRACE_S
        self._progress: ForecastProgress | None = None
        self._outcome: Future[dict[str, Any]] = Future()
        self._outcome.add_done_callback(lambda _: on_change())
        process.capacity.admitted(job_id)  # it takes no slots of this process
        given = (job, receipt, queue)
        threading.Thread(target=self._run, args=given, name="kronos-isolated", daemon=True).start()

    def advance(self) -> bool:
        """Whether the job has ended, so that it has its ``result``. Raises JobError if it is late."""
        if not self._outcome.done() and time.monotonic() > self._late_at:
            late = "the job was not done within its deadline; allow more time"
            raise JobError(ErrorCode.DEADLINE, late, "deadline_s")
        return self._outcome.done()

    def result(self) -> dict[str, Any]:
        """The result as JSON, or the error."""
        return self._outcome.result()

    def new_progress(self) -> ForecastProgress | None:
        """What was reported since the last call."""
        progress, self._progress = self._progress, None
        return progress

    def report_progress(self, progress: ForecastProgress) -> None:
        self._progress = progress

    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> None:
        """Have the thread end its wait, and the child."""
        self._is_cancelled = True

    close = cancel

    def _run(self, job: Mapping[str, Any], receipt: Receipt, queue: str) -> None:
        try:
            self._outcome.set_result(self._compute(job, receipt, queue))
        except Exception as error:  # noqa: BLE001  the attempt knows them all
            self._outcome.set_exception(error)

    def _compute(self, job: Mapping[str, Any], receipt: Receipt, queue: str) -> dict[str, Any]:
        """The result. The job's record counts the processes that died with it."""
        job_store = self._process.job_store
        try:
            return self._process.isolation.compute(self._job_id, job, receipt, queue, self)
        except ChildEnded as ended:
            log.warning("job %s: %s while it computed only this job", self._job_id, ended)
            num_lost = job_store.count(self._job_id, self._tag, "lost_alone")
            if num_lost is None:
                raise Ignore from None
            if num_lost >= MAX_LOST_ALONE:
                raise worker_lost(ended.exit_status) from None
            raise RetryLater(str(ended)) from None
        except ChildUnavailable as unavailable:
            log.warning("job %s: it cannot run in isolation now, trying later: %s", self._job_id, unavailable)
            num_postponed = job_store.count(self._job_id, self._tag, "put_off")
            if num_postponed is not None and num_postponed >= MAX_POSTPONED:
                raise unavailable.error from None
            raise RetryLater(str(unavailable), POSTPONE_DELAY_S) from None


def worker_lost(exit_status: int) -> JobError:
    """The error of a job whose process died each time, although it computed only this job."""
    how = f"signal {-exit_status}" if exit_status < 0 else f"status {exit_status}"
    text = (
        f"each process that computed the job died, the last one by {how}: report it with the job's id, or "
        "ask for fewer paths if memory may be short"
    )
    return JobError(ErrorCode.WORKER_LOST, text, None, {"exit_status": exit_status})
