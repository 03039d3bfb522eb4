"""The kinds of jobs: their tasks, queues, states and results. Each kind's models are imported when used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from kronos_client.contract import states
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.names import PROGRESS_STATE, Kind
from kronos_client.core.stored import Stored

if TYPE_CHECKING:
    from kronos_client.contract.backtest import BacktestJob, BacktestProgress, BacktestResult
    from kronos_client.contract.finetune import FinetuneJob, FinetuneProgress, FinetuneResult
    from kronos_client.contract.forecast import ForecastJob
    from kronos_client.contract.results import ForecastResult, SeriesForecast

    AnyJob = ForecastJob | FinetuneJob | BacktestJob


FINETUNE_PROGRESS: Final = "finetune.FinetuneProgress"
BACKTEST_PROGRESS: Final = "backtest.BacktestProgress"


@cache
def _contract(name: str) -> Any:
    """A model or a function of the contract, which is imported now: most apps need one kind."""
    module, _, what = name.rpartition(".")
    return getattr(import_module(f"kronos_client.contract.{module}"), what)


@dataclass(frozen=True)
class TaskState:
    """A job's state: PENDING (queued or unknown), STARTED, PROGRESS, SUCCESS or FAILURE.

    ``waiting`` says why no worker takes it now, and how to start one.
    """

    name: str
    waiting: str | None = field(default=None, kw_only=True)

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


class JobKind(NamedTuple, Generic[State, Result]):
    """The differences between the kinds.

    Attributes:
        parser, result_type, progress_type: Names in the contract.
        make_state: Makes a state of its name and the progress.
        candles_field, if_too_large: The field at fault if a job is too large, and the remedy.
        notes: Warnings of the client that made the job, which its results have too.
    """

    name: Kind
    parser: str
    result_type: str
    progress_type: str
    make_state: Callable[[str, Any], State]
    candles_field: str = "data.instruments"
    if_too_large: str = "put the candles into the workers' data folder"
    notes: Sequence[str] = ()

    def parse(self, payload: object, limits: Limits) -> AnyJob:
        """Check a job. Raises JobError, as a worker does for it."""
        job: AnyJob = _contract(self.parser)(payload, limits)
        return job

    def state_of(self, stored: Stored) -> State:
        """The state that is stored."""
        progress_type = _contract(self.progress_type)
        try:
            progress = progress_type.model_validate(progress_of(stored))
        except ValidationError:  # a worker of another version wrote it
            progress = progress_type()
        state = self.make_state(stored.status, progress)
        return state if stored.waiting is None else replace(state, waiting=stored.waiting)

    def result_of(self, stored: Stored) -> Result | None:
        """The result; None while it is still to come.

        Raises:
            JobError: The job's own, or RESULT_EXPIRED or LOST, also if it is of another kind.
        """
        stored.raise_absence()
        if not stored.has_ended:
            return None
        if stored.status != states.SUCCESS:
            raise JobError(*stored.value.args)
        try:
            result: Result = _contract(self.result_type).model_validate(stored.value)
        except ValidationError:
            message = (
                f"what is stored under that id is not the result of a {self.name} job: check the id, and "
            )
            message += "whether it is of a forecast, a finetuning job or a backtest"
            raise JobError(ErrorCode.LOST, message, "job_id") from None
        noted: Any = {"warnings": (*getattr(result, "warnings", ()), *self.notes)}
        return result.model_copy(update=noted) if self.notes else result


def progress_of(stored: Stored) -> dict[str, Any]:
    """The progress that the worker published; empty in any other state."""
    return stored.value if stored.status == PROGRESS_STATE and isinstance(stored.value, dict) else {}


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
