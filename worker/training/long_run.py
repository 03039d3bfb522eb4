"""What finetuning jobs and backtests share on their worker: notes of earlier attempts, and when to stop."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from kronos_client.contract.errors import JobError
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.names import CELERY_PRIORITIES
from kronos_client.redis.job_store import Receipt
from worker.training.child import Stop
from worker.training.finetune_process import FinetuneProcess
from worker.training.job_errors import stopped
from worker.training.job_folder import JobFolder, JobNotes
from worker.training.job_notes import AttemptLog


class Interrupted(Exception):
    """The job was stopped and saved, so that another worker can continue it."""


class LongRun(ABC):
    """One long job. The task sets ``is_cancelled``, and reads ``progress``, the job's last report.

    Raises:
        JobError: The job cannot be used.
    """

    parse: Callable[[object, Limits], Any]
    """Reads the job, as a static method."""

    def __init__(
        self,
        process: FinetuneProcess,
        job_id: str,
        payload: Any,
        content: str,
        receipt: Receipt,
        queue: str,
        time_limit_s: float = math.inf,
    ) -> None:
        self._process = process
        self._job_id = job_id
        self._receipt = receipt
        self._queue = queue
        self._time_limit_s = min(time_limit_s, process.settings.finetune_time_limit_s or math.inf)
        self._began = time.monotonic()
        self.is_cancelled = receipt.is_cancelled
        self.progress: dict[str, Any] | None = None
        self._folder = JobFolder(process.model_folder, job_id)
        self._job: Any = self.parse(payload, process.limits)
        self._waited_s = receipt.waited_s(self._job.submitted_at)
        self._fingerprint = content
        delivery = {"routing_key": queue, "priority": CELERY_PRIORITIES[self._job.priority]}
        process.metrics.observe_job_wait(delivery, self._job.submitted_at, receipt)

    def run(self, is_safe: Callable[[], bool], is_running_out: Callable[[], bool]) -> dict[str, Any]:
        """Work until the job is done. Returns the result as JSON.

        Args:
            is_safe: Whether there is time to continue before another worker may begin the job.
            is_running_out: Whether this worker must stop at once.

        Raises:
            JobError: The job ends with this error.
            Interrupted: Another worker, or this one later, is to continue the job.
        """
        self._is_safe, self._is_running_out = is_safe, is_running_out
        earlier = self._folder.notes(self._fingerprint)
        notes = earlier or JobNotes(self._fingerprint, {}, queued_s=max(0.0, self._waited_s))
        self._attempts = AttemptLog(self._folder, notes, is_running_out)
        if earlier is not None and (result := self._earlier_result()) is not None:
            return result
        if (stop := self._own_stop()) is not None:
            raise self._stopped(stop)
        return self._work(is_first=earlier is None)

    @abstractmethod
    def _earlier_result(self) -> dict[str, Any] | None:
        """The result of a worker that died before it stored the job's outcome."""

    @abstractmethod
    def _work(self, *, is_first: bool) -> dict[str, Any]:
        """Do the job. ``is_first`` is whether no worker has begun it. Raises as ``run``."""

    @abstractmethod
    def _failed(self, error: JobError) -> JobError:
        """Remove what only a later attempt would need, and return the job's error."""

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def _total_ms(self) -> float:
        """Milliseconds since the job was submitted."""
        return round((max(0.0, self._waited_s) + self._elapsed_s) * 1000, 3)

    @property
    def _queued_ms(self) -> float:
        """Milliseconds from the submission to the first start."""
        return round(self._attempts.notes.queued_s * 1000, 3)

    def _own_stop(self) -> Stop | None:
        """Why the job must end for good, if it must."""
        if self.is_cancelled:
            return Stop.CANCELLED
        if self._waited_s + self._elapsed_s >= (self._job.deadline_s or math.inf):
            return Stop.DEADLINE
        if self._receipt.worked_s + self._elapsed_s >= self._time_limit_s:
            return Stop.TIME_LIMIT
        return None

    def _should_stop(self) -> Stop | None:
        """Why this worker must stop the job, if it must. It then does not count as killed."""
        stop = self._own_stop() if self._is_safe() else Stop.CLAIM
        if stop is None and self._process.is_draining.is_set():
            stop = Stop.DRAINED
        if stop is not None:
            self._attempts.uncount_start()
        return stop

    def _stopped(self, stop: Stop) -> JobError:
        return self._failed(stopped(stop, self._job.deadline_s, self._time_limit_s))
