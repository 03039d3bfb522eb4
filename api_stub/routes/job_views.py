"""A job as requests are told of it: where it is, how far, and what came of it."""

from collections.abc import Mapping
from typing import Any, Final, Generic, Literal, TypeVar

from celery import states
from fastapi.responses import Response
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_json

from api_stub.watching import Meta
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune_results import FinetuneProgress, FinetuneResult
from kronos_client.contract.names import PROGRESS_STATE
from kronos_client.contract.results import ForecastResult
from kronos_client.core.handle import JobHandle

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


def state_of(meta: Meta | None) -> State:
    """Of what Celery stores."""
    if meta is None:
        return "queued"
    status = meta["status"]
    if status == states.SUCCESS:
        return "done"
    if status in states.READY_STATES:
        return "cancelled" if error_of(meta).code == ErrorCode.CANCELLED else "failed"
    return "running" if status in (states.STARTED, PROGRESS_STATE) else "queued"


def error_of(meta: Meta) -> JobError:
    """The error of a job that has one, also where another program stored it."""
    stored = meta.get("result")
    arguments = stored.get("exc_message") if isinstance(stored, dict) else None
    if isinstance(stored, dict) and stored.get("exc_type") == JobError.__name__:
        match arguments:
            case [str(code), str(message), str() | None as field, dict(details)]:
                return JobError(code, message, field, details)
    return JobError(ErrorCode.INTERNAL, "the job failed; see the worker's log, and report the job's id")


def forecast_view(job_id: str, meta: Meta | None) -> ForecastView:
    """Raises JobError LOST where the job is of another kind."""
    told = _told(meta)
    return ForecastView(
        id=job_id,
        state=state_of(meta),
        bars_done=_count(told.get("bars_done")),
        bars_total=_count(told.get("bars_total")),
        result=result_of(ForecastResult, meta),
        error=_problem(meta),
    )


def finetune_view(job_id: str, meta: Meta | None) -> FinetuneView:
    """Likewise."""
    try:
        progress = FinetuneProgress.model_validate(_told(meta)) if _told(meta) else None
    except ValidationError:  # of a worker with another form of it; the state itself still counts
        progress = None
    return FinetuneView(
        id=job_id,
        state=state_of(meta),
        progress=progress,
        result=result_of(FinetuneResult, meta),
        error=_problem(meta),
    )


def result_of(kind: type[Result], meta: Meta | None) -> Result | None:
    """What a job that is done came to; raises JobError LOST where that is of another kind."""
    if meta is None or meta["status"] != states.SUCCESS:
        return None
    try:
        return kind.model_validate(meta.get("result"))
    except ValidationError:
        raise JobError(ErrorCode.LOST, "no job of this kind has that id") from None


def accepted(handle: JobHandle[Any, Any], url: str, meta: Meta | None = None) -> Accepted:
    """What is told of a job that goes on."""
    return Accepted(id=handle.id, state=state_of(meta), url=f"{url}/{handle.id}", queue=handle.queue)


def _told(meta: Meta | None) -> Mapping[str, Any]:
    """What the worker tells of a job that it computes."""
    told = meta.get("result") if meta is not None and meta["status"] == PROGRESS_STATE else None
    return told if isinstance(told, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def problem_of(error: JobError) -> JobProblem:
    """An error as part of an answer."""
    return JobProblem(code=error.code, message=error.message, field=error.field, details=error.details)


def _problem(meta: Meta | None) -> JobProblem | None:
    if state_of(meta) not in ("failed", "cancelled"):
        return None
    assert meta is not None
    return problem_of(error_of(meta))
