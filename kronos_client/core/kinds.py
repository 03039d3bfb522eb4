"""The kinds of jobs: their tasks, queues, states and results. Each kind's models are imported when used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from kronos_client.contract import states
from kronos_client.contract.errors import JobError
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.names import (
    BACKTEST_TASK,
    FINETUNE_TASK,
    FORECAST_TASK,
    PROGRESS_STATE,
    Kind,
)
from kronos_client.core.stored import Stored

if TYPE_CHECKING:
    from kronos_client.contract.backtest import BacktestJob, BacktestProgress, BacktestResult
    from kronos_client.contract.finetune import FinetuneJob, FinetuneProgress, FinetuneResult
    from kronos_client.contract.forecast import ForecastJob
    from kronos_client.contract.results import ForecastProgress, ForecastResult, SeriesForecast

    AnyJob = ForecastJob | FinetuneJob | BacktestJob


FINETUNE_PROGRESS: Final = "finetune.FinetuneProgress"
BACKTEST_PROGRESS: Final = "backtest.BacktestProgress"


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


@dataclass(frozen=True)
class JobKind(Generic[State, Result]):
    """The differences between the kinds; ``parser`` and ``result_type`` are names in the contract."""

    name: Kind
    task: str
    parser: str
    result_type: str
    state_of: Callable[[Stored], State]

    def parse(self, payload: object, limits: Limits) -> AnyJob:
        """Check a job. Raises JobError, as a worker does for it."""
        job: AnyJob = _contract(self.parser)(payload, limits)
        return job

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


def _job_state(stored: Stored) -> JobState:
    progress: ForecastProgress = read_progress(_contract("results.ForecastProgress"), stored)
    return JobState(stored.status, progress.bars_done, progress.bars_total, progress.series)


def _finetune_state(stored: Stored) -> FinetuneState:
    return FinetuneState(stored.status, read_progress(_contract(FINETUNE_PROGRESS), stored))


def _backtest_state(stored: Stored) -> BacktestState:
    return BacktestState(stored.status, read_progress(_contract(BACKTEST_PROGRESS), stored))


FORECAST: Final[JobKind[JobState, ForecastResult]] = JobKind(
    "forecast", FORECAST_TASK, "jobs.parse_job", "results.ForecastResult", _job_state
)
FINETUNE: Final[JobKind[FinetuneState, FinetuneResult]] = JobKind(
    "finetune",
    FINETUNE_TASK,
    "finetune.parse_finetune_job",
    "finetune.FinetuneResult",
    _finetune_state,
)
BACKTEST: Final[JobKind[BacktestState, BacktestResult]] = JobKind(
    "backtest",
    BACKTEST_TASK,
    "backtest.parse_backtest_job",
    "backtest.BacktestResult",
    _backtest_state,
)
