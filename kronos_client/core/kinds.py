"""The kinds of jobs, forecasts and finetuning: their tasks, queues, states and results."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from celery import states
from pydantic import BaseModel, ValidationError

from kronos_client.contract.errors import JobError
from kronos_client.contract.finetune_results import FinetuneProgress, FinetuneResult
from kronos_client.contract.names import FINETUNE_TASK, FORECAST_TASK, PROGRESS_STATE, Role
from kronos_client.contract.results import ForecastProgress, ForecastResult, SeriesForecast
from kronos_client.core.stored import Stored


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

    progress: FinetuneProgress = field(default_factory=FinetuneProgress)


State = TypeVar("State", bound=TaskState)
Result = TypeVar("Result", bound=BaseModel)


@dataclass(frozen=True)
class JobKind(Generic[State, Result]):
    """The differences between forecasts and finetuning."""

    role: Role
    task: str
    result_type: type[Result]
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
        return self.result_type.model_validate(stored.value)


def progress_of(stored: Stored) -> dict[str, Any]:
    """The progress that the worker published; empty in any other state."""
    return stored.value if stored.status == PROGRESS_STATE and isinstance(stored.value, dict) else {}


def _job_state(stored: Stored) -> JobState:
    try:
        progress = ForecastProgress.model_validate(progress_of(stored))
    except ValidationError:  # a worker of another version wrote it; the state itself is valid
        return JobState(stored.status)
    return JobState(stored.status, progress.bars_done, progress.bars_total, progress.series)


def _finetune_state(stored: Stored) -> FinetuneState:
    try:
        return FinetuneState(stored.status, FinetuneProgress.model_validate(progress_of(stored)))
    except ValidationError:  # a worker of another version wrote it; the state itself is valid
        return FinetuneState(stored.status)


FORECAST: Final = JobKind("forecast", FORECAST_TASK, ForecastResult, _job_state)
FINETUNE: Final = JobKind("finetune", FINETUNE_TASK, FinetuneResult, _finetune_state)
