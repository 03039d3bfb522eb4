"""ForecastHandle: an enqueued job, from its submitter's side. No torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from celery import states
from celery.exceptions import BackendError
from celery.exceptions import TimeoutError as CeleryTimeout
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from worker.contract.errors import ErrorCode, JobError
from worker.contract.names import PROGRESS_STATE
from worker.contract.results import ForecastResult
from worker.jobs import JobRecords

# Celery's result consumer raises a bare RuntimeError once it has given up reconnecting.
NOT_REACHED: Final = (RedisError, OperationalError, BackendError, RuntimeError)


@contextmanager
def reachable(job_id: str | None = None) -> Iterator[None]:
    """Turns a Redis that does not answer into JobError BROKER_UNREACHABLE."""
    try:
        yield
    except NOT_REACHED as error:
        raise JobError(
            ErrorCode.BROKER_UNREACHABLE,
            f"Redis does not answer ({type(error).__name__}); is it running, and is the URL right?",
            None,
            {} if job_id is None else {"job_id": job_id},
        ) from error


@dataclass(frozen=True)
class JobState:
    """Where a job is: PENDING (queued, or unknown), STARTED, PROGRESS, SUCCESS or FAILURE."""

    name: str
    bars_done: int | None = None
    bars_total: int | None = None


class ForecastHandle:
    """An enqueued job."""

    def __init__(self, job_id: str, queue: str, result: "AsyncResult[Any]", records: JobRecords) -> None:
        self.id = job_id
        self.queue = queue
        self._result = result
        self._records = records

    def __repr__(self) -> str:
        return f"ForecastHandle(id={self.id!r}, queue={self.queue!r})"

    def state(self) -> JobState:
        """Where the job is now."""
        with reachable(self.id):
            meta = self._result.backend.get_task_meta(self.id)
        info = meta.get("result") if meta["status"] == PROGRESS_STATE else None
        if isinstance(info, dict):
            return JobState(meta["status"], info.get("bars_done"), info.get("bars_total"))
        return JobState(meta["status"])

    def wait(self, timeout_s: float | None = None) -> ForecastResult:
        """The result, once it is there.

        Raises JobError: the job's own; TIMEOUT where it is not done in time (it goes on; wait again);
        RESULT_EXPIRED or LOST where there is nothing to wait for.
        """
        try:
            with reachable(self.id):
                self._check_that_it_will_come()
                # An app may well wait in a task of its own: its workers are not ours, so none blocks itself.
                payload = self._result.get(timeout=timeout_s, disable_sync_subtasks=False)
        except CeleryTimeout:
            raise JobError(
                ErrorCode.TIMEOUT, f"no result within {timeout_s} s; the job goes on, wait again or cancel it"
            ) from None
        except JobError as error:
            raise error from None
        return ForecastResult.model_validate(payload)

    def cancel(self) -> None:
        """Ask for the job to end as CANCELLED; a job that is done already stays as it is."""
        with reachable(self.id):
            if not self._records.has_ended(self.id):
                self._records.request_cancel(self.id)

    def _check_that_it_will_come(self) -> None:
        if self._result.backend.get_task_meta(self.id)["status"] == states.PENDING:
            absence = self._records.explain_absence(self.id)
            if absence is not None:
                raise absence
