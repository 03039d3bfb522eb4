"""A job as requests are told of it: where it is, how far, and what came of it."""

from typing import Any, Final, Generic, Literal, TypeVar

from celery import states
from fastapi.responses import Response
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_json

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune_results import FinetuneProgress, FinetuneResult
from kronos_client.contract.names import PROGRESS_STATE
from kronos_client.contract.results import ForecastResult
from kronos_client.core.kinds import progress_of
from kronos_client.core.stored import Stored

State = Literal["queued", "running", "done", "failed", "cancelled"]

FORECASTS_URL: Final = "/v1/forecasts"
FINETUNES_URL: Final = "/v1/finetunes"


class JobProblem(BaseModel):
    """Why a job has no result."""

    code: str = Field(examples=["HIGH_BELOW_LOW"])
    message: str
    field: str | None = None
    details: dict[str, Any] = {}


class Accepted(BaseModel):
    """A job that was enqueued."""

    id: str
    state: State = "queued"
    url: str = Field(description="where its state and result are", examples=["/v1/forecasts/9b2f…"])
    queue: str | None = Field(default=None, description="that it waits in", examples=["cpu"])


class ForecastView(BaseModel):
    """A forecast job."""

    id: str
    state: State
    bars_done: int | None = Field(default=None, description="of all paths of all series, while it runs")
    bars_total: int | None = None
    result: ForecastResult | None = Field(
        default=None, description="once done, as docs/reference/contract.md has it"
    )
    error: JobProblem | None = Field(default=None, description="once it failed or was cancelled")


class FinetuneView(BaseModel):
    """A finetuning job."""

    id: str
    state: State
    progress: FinetuneProgress | None = Field(default=None, description="while it runs")
    result: FinetuneResult | None = Field(default=None, description="once it is done")
    error: JobProblem | None = Field(default=None, description="once it failed or was cancelled")


View = TypeVar("View", ForecastView, FinetuneView)
Result = TypeVar("Result", ForecastResult, FinetuneResult)


class Json(Response, Generic[View]):
    """A model as JSON, made once: FastAPI would check each number of a result anew."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


def state_of(stored: Stored) -> State:
    """A job's state as requests name it."""
    if stored.status == states.SUCCESS:
        return "done"
    if stored.has_ended:
        return "cancelled" if stored.value.code == ErrorCode.CANCELLED else "failed"
    return "running" if stored.status in (states.STARTED, PROGRESS_STATE) else "queued"


def forecast_view(job_id: str, stored: Stored) -> ForecastView:
    """Raises JobError LOST where the job is of another kind."""
    progress = progress_of(stored)
    return ForecastView(
        id=job_id,
        state=state_of(stored),
        bars_done=_count(progress.get("bars_done")),
        bars_total=_count(progress.get("bars_total")),
        result=result_of(ForecastResult, stored),
        error=_problem(stored),
    )


def finetune_view(job_id: str, stored: Stored) -> FinetuneView:
    """Likewise."""
    try:
        progress = FinetuneProgress.model_validate(told) if (told := progress_of(stored)) else None
    except ValidationError:  # of a worker with another form of it; the state itself still counts
        progress = None
    return FinetuneView(
        id=job_id,
        state=state_of(stored),
        progress=progress,
        result=result_of(FinetuneResult, stored),
        error=_problem(stored),
    )


def result_of(kind: type[Result], stored: Stored) -> Result | None:
    """The result of a job that is done; raises JobError LOST if it is of another kind."""
    if stored.status != states.SUCCESS:
        return None
    try:
        return kind.model_validate(stored.value)
    except ValidationError:
        raise JobError(ErrorCode.LOST, "no job of this kind has that id") from None


def accepted(job_id: str, queue: str | None, url: str, stored: Stored) -> Accepted:
    """What is told of a job that goes on."""
    return Accepted(id=job_id, state=state_of(stored), url=f"{url}/{job_id}", queue=queue)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def problem_of(error: JobError) -> JobProblem:
    """An error as part of an answer."""
    return JobProblem(code=error.code, message=error.message, field=error.field, details=error.details)


def _problem(stored: Stored) -> JobProblem | None:
    return problem_of(stored.value) if state_of(stored) in ("failed", "cancelled") else None
