"""The kinds of jobs: their tasks, queues, states and results. Each kind's models are imported when used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from kronos_client.contract import states
from kronos_client.contract.errors import JobError
from kronos_client.contract.jobs import Limits, parse_job
from kronos_client.contract.names import (
    BACKTEST_TASK,
    FINETUNE_TASK,
    FORECAST_TASK,
    PROGRESS_STATE,
    Kind,
)
from kronos_client.core.stored import NOTHING, Stored

if TYPE_CHECKING:
    from kronos_client.contract.backtest import BacktestJob
    from kronos_client.contract.backtest_results import BacktestProgress, BacktestResult
    from kronos_client.contract.finetune import FinetuneJob
    from kronos_client.contract.finetune_results import FinetuneProgress, FinetuneResult
    from kronos_client.contract.forecast import ForecastJob
    from kronos_client.contract.results import ForecastResult, SeriesForecast

    AnyJob = ForecastJob | FinetuneJob | BacktestJob


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

    progress: FinetuneProgress = field(default_factory=lambda: _finetune_progress(NOTHING))


@dataclass(frozen=True)
class BacktestState(TaskState):
    """A backtest's state; in PROGRESS with the forecasts that are done."""

    progress: BacktestProgress = field(default_factory=lambda: _backtest_progress(NOTHING))


State = TypeVar("State", bound=TaskState)
Result = TypeVar("Result", bound=BaseModel)
Progress = TypeVar("Progress", bound=BaseModel)


@dataclass(frozen=True)
class JobKind(Generic[State, Result]):
    """The differences between the kinds. ``parse`` raises JobError, as a worker does for such a job."""

    name: Kind
    task: str
    parse: Callable[[object, Limits], AnyJob]
    read_result: Callable[[Any], Result]
    state_of: Callable[[Stored], State]

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
        return self.read_result(stored.value)


def progress_of(stored: Stored) -> dict[str, Any]:
    """The progress that the worker published; empty in any other state."""
    return stored.value if stored.status == PROGRESS_STATE and isinstance(stored.value, dict) else {}


def read_progress(model: type[Progress], stored: Stored) -> Progress:
    """The progress that the worker published; without its fields if a worker of another version wrote it."""
    with suppress(ValidationError):
        return model.model_validate(progress_of(stored))
    return model()


def _job_state(stored: Stored) -> JobState:
    if not progress_of(stored):
        return JobState(stored.status)
    from kronos_client.contract.results import ForecastProgress

    progress = read_progress(ForecastProgress, stored)
    return JobState(stored.status, progress.bars_done, progress.bars_total, progress.series)


def _forecast_result(value: Any) -> ForecastResult:
    from kronos_client.contract.results import ForecastResult

    return ForecastResult.model_validate(value)


def _finetune_job(payload: object, limits: Limits) -> FinetuneJob:
    from kronos_client.contract.finetune import parse_finetune_job

    return parse_finetune_job(payload, limits)


def _finetune_progress(stored: Stored) -> FinetuneProgress:
    from kronos_client.contract.finetune_results import FinetuneProgress

    return read_progress(FinetuneProgress, stored)


def _finetune_state(stored: Stored) -> FinetuneState:
    return FinetuneState(stored.status, _finetune_progress(stored))


def _finetune_result(value: Any) -> FinetuneResult:
    from kronos_client.contract.finetune_results import FinetuneResult

    return FinetuneResult.model_validate(value)


def _backtest_job(payload: object, limits: Limits) -> BacktestJob:
    from kronos_client.contract.backtest import parse_backtest_job

    return parse_backtest_job(payload, limits)


def _backtest_progress(stored: Stored) -> BacktestProgress:
    from kronos_client.contract.backtest_results import BacktestProgress

    return read_progress(BacktestProgress, stored)


def _backtest_state(stored: Stored) -> BacktestState:
    return BacktestState(stored.status, _backtest_progress(stored))


def _backtest_result(value: Any) -> BacktestResult:
    from kronos_client.contract.backtest_results import BacktestResult

    return BacktestResult.model_validate(value)


FORECAST: Final = JobKind("forecast", FORECAST_TASK, parse_job, _forecast_result, _job_state)
FINETUNE: Final = JobKind("finetune", FINETUNE_TASK, _finetune_job, _finetune_result, _finetune_state)
BACKTEST: Final = JobKind("backtest", BACKTEST_TASK, _backtest_job, _backtest_result, _backtest_state)
