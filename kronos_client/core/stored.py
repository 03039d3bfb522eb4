"""A job's stored state in Redis, in Celery's format, which clients in any language read."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from kronos_client.contract import states
from kronos_client.contract.errors import ErrorCode, JobError

if TYPE_CHECKING:
    from kronos_client.contract.backtest import BacktestJob
    from kronos_client.contract.finetune import FinetuneJob
    from kronos_client.contract.forecast import ForecastJob

    AnyJob = ForecastJob | FinetuneJob | BacktestJob


log = logging.getLogger(__name__)

LOST: Final = JobError(ErrorCode.LOST, "Redis holds nothing about this job: check its id, or submit it again")
NOT_BEGUN: Final = JobError(ErrorCode.CANCELLED, "the job was cancelled before it began, as requested")
LATE: Final = JobError(
    ErrorCode.DEADLINE,
    "the job's deadline_s passed before a worker began it; allow more time or add workers",
    "deadline_s",
)
FORGOTTEN: Final = JobError(
    ErrorCode.RESULT_EXPIRED,
    "the result was deleted after it was read, as requested; submit the job under another job_id",
)


def lost(job_id: str) -> JobError:
    """The error of a job whose message is gone without an outcome."""
    message = f"the message of job {job_id!r} is gone, and it has no outcome: it is safe to submit again"
    return JobError(ErrorCode.LOST, message, None, {"job_id": job_id})


class Stored(NamedTuple):
    """The stored state of a job.

    Attributes:
        status: Celery's name of the job's state; PENDING if nothing is stored.
        value: The progress, the result as JSON has it, or the JobError of a job that failed.
        absence: Why there is no result and will be none; None if it is there or may still come.
        queue: Where it waits, if a worker must still take it.
        waiting: Why no worker takes it from there now, in words.
    """

    status: str = states.PENDING
    value: Any = None
    absence: JobError | None = None
    queue: str | None = None
    waiting: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether this is the job's outcome."""
        return self.status in states.READY_STATES

    def raise_absence(self) -> None:
        """Raises a new JobError if there is no result and will be none."""
        if self.absence is not None:
            raise JobError(*self.absence.args)


NOTHING: Final = Stored()


def read_stored(job_id: str, data: bytes | str, *, is_cut: bool = False) -> Stored:
    """Decode a job's stored state, or its beginning. Content in another format counts as nothing."""
    meta: Any = None
    if is_cut and isinstance(data, bytes):
        data = data.decode(errors="ignore")  # the last character may be incomplete
    with suppress(ValueError):
        meta = from_json(data, allow_partial=is_cut)
    if not isinstance(meta, dict) or not isinstance(meta.get("status"), str):
        log.warning("the stored state of job %r cannot be read; the job counts as pending", job_id)
        return NOTHING
    stored = Stored(meta["status"], meta.get("result"))
    if stored.has_ended and stored.status != states.SUCCESS:
        return stored._replace(value=_error_of(stored.value))
    return stored


def encode_failure(job_id: str, error: JobError) -> bytes:
    """A job's failure as a worker stores it."""
    stored = {"exc_type": JobError.__name__, "exc_message": error.args, "exc_module": JobError.__module__}
    return encode_state(job_id, states.FAILURE, stored)


def encode_state(job_id: str, status: str, result: Any, request: Any = None) -> bytes:
    """A job's state as a worker stores it, as Celery's JSON of it; ``request`` is Celery's context."""
    done = datetime.now(UTC).isoformat() if status in states.READY_STATES else None
    meta = {"status": status, "result": result, "traceback": None, "children": [], "date_done": done}
    for name, key in (("group", "group_id"), ("parent_id", "parent_id")):
        if value := getattr(request, name, None):
            meta[key] = value
    return to_json(meta | {"task_id": job_id})


def _error_of(stored: Any) -> JobError:
    """The error of a failed job. INTERNAL if another program stored it."""
    if isinstance(stored, dict) and stored.get("exc_type") == JobError.__name__:
        match stored.get("exc_message"):
            case [str(code), str(message), str() | None as field, dict(details)]:
                return JobError(code, message, field, details)
    return JobError(ErrorCode.INTERNAL, "the job failed; see the worker's log, and report the job's id")
