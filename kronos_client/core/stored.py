"""A job's stored state in Redis, in Celery's format, and what it means for each kind of job.

The models of a kind are imported when they are used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from kronos_client.contract import states
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import PROGRESS_STATE, Kind, Limits

if TYPE_CHECKING:
    from kronos_client.contract.backtest import BacktestJob, BacktestProgress, BacktestResult
    from kronos_client.contract.finetune import FinetuneJob, FinetuneProgress, FinetuneResult
    from kronos_client.contract.forecast import ForecastJob
    from kronos_client.contract.results import ForecastResult, SeriesForecast

    AnyJob = ForecastJob | FinetuneJob | BacktestJob


log = logging.getLogger(__name__)

LOST: Final = JobError(ErrorCode.LOST, "Redis holds nothing about this job: check its id, or submit it again")
NOT_BEGUN: Final = JobError(ErrorCode.CANCELLED, "the job was cancelled before it began, as requested")
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
    """

    status: str = states.PENDING
    value: Any = None
    absence: JobError | None = None

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


FINETUNE_PROGRESS: Final = "finetune.FinetuneProgress"
BACKTEST_PROGRESS: Final = "backtest.BacktestProgress"


@cache
def _contract(name: str) -> Any:
    """A model or a function of the contract, which is imported now: most apps need one kind."""
    module, _, what = name.rpartition(".")
    return getattr(import_module(f"kronos_client.contract.{module}"), what)


@dataclass(frozen=True)
class TaskState:
    """A job's state: PENDING (queued or unknown), STARTED, PROGRESS, SUCCESS or FAILURE."""

    name: str

    @property
    def has_ended(self) -> bool:
        """Whether the job has its outcome."""
        return self.name in states.READY_STATES


@dataclass(frozen=True)
class JobState(TaskState):
    """A forecast's state; in PROGRESS with the number of bars done, over all paths.

    ``series``: if the job streams, the first bars of its result, of each series that has some. A bar that is
    there does not change any more.
    """

    bars_done: int | None = None
    bars_total: int | None = None
    series: tuple[SeriesForecast, ...] = ()


@dataclass(frozen=True)
class FinetuneState(TaskState):
    """A finetuning job's state; in PROGRESS with the progress of training."""

    progress: FinetuneProgress = field(default_factory=lambda: _contract(FINETUNE_PROGRESS)())


@dataclass(frozen=True)
class BacktestState(TaskState):
    """A backtest's state; in PROGRESS with the forecasts that are done."""

    progress: BacktestProgress = field(default_factory=lambda: _contract(BACKTEST_PROGRESS)())


State = TypeVar("State", bound=TaskState)
Result = TypeVar("Result", bound=BaseModel)
Progress = TypeVar("Progress", bound=BaseModel)


class JobKind(NamedTuple, Generic[State, Result]):
    """The differences between the kinds.

    Attributes:
        parser, result_type, progress_type: Names in the contract.
        make_state: Makes a state of its name and the progress.
        candles_field, if_too_large: The field at fault if a job is too large, and the remedy.
    """

    name: Kind
    parser: str
    result_type: str
    progress_type: str
    make_state: Callable[[str, Any], State]
    candles_field: str = "data.instruments"
    if_too_large: str = "put the candles into the workers' data folder"

    def parse(self, payload: object, limits: Limits) -> AnyJob:
        """Check a job. Raises JobError, as a worker does for it."""
        job: AnyJob = _contract(self.parser)(payload, limits)
        return job

    def state_of(self, stored: Stored) -> State:
        """The state that is stored."""
        return self.make_state(stored.status, read_progress(_contract(self.progress_type), stored))

    def result_of(self, stored: Stored) -> Result | None:
        """The result; None while it is still to come.

        Raises:
            JobError: The job's own, or RESULT_EXPIRED or LOST.
        """
        stored.raise_absence()
        if not stored.has_ended:
            return None
        if stored.status != states.SUCCESS:
            raise JobError(*stored.value.args)
        result: Result = _contract(self.result_type).model_validate(stored.value)
        return result


def progress_of(stored: Stored) -> dict[str, Any]:
    """The progress that the worker published; empty in any other state."""
    return stored.value if stored.status == PROGRESS_STATE and isinstance(stored.value, dict) else {}


def read_progress(model: type[Progress], stored: Stored) -> Progress:
    """The progress that the worker published; without its fields if a worker of another version wrote it."""
    with suppress(ValidationError):
        return model.model_validate(progress_of(stored))
    return model()


FORECAST: Final[JobKind[JobState, ForecastResult]] = JobKind(
    "forecast",
    parser="jobs.parse_job",
    result_type="results.ForecastResult",
    progress_type="results.ForecastProgress",
    make_state=lambda name, now: JobState(name, now.bars_done, now.bars_total, now.series),
    candles_field="series",
    if_too_large="send fewer series",
)
FINETUNE: Final[JobKind[FinetuneState, FinetuneResult]] = JobKind(
    "finetune",
    parser="finetune.parse_finetune_job",
    result_type="finetune.FinetuneResult",
    progress_type=FINETUNE_PROGRESS,
    make_state=FinetuneState,
)
BACKTEST: Final[JobKind[BacktestState, BacktestResult]] = JobKind(
    "backtest",
    parser="backtest.parse_backtest_job",
    result_type="backtest.BacktestResult",
    progress_type=BACKTEST_PROGRESS,
    make_state=BacktestState,
)
