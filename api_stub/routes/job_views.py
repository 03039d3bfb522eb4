"""Jobs in answers: their address, state, progress, and result or error."""

from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, Field

from api_stub.job_state import JobProblem, State, problem_of, state_of
from api_stub.routes.query import NEXT
from kronos_client.contract.backtest import BacktestProgress, BacktestResult
from kronos_client.contract.finetune import FinetuneProgress, FinetuneResult
from kronos_client.contract.results import ForecastResult
from kronos_client.core.job_facts import ListedJob
from kronos_client.core.kinds import BACKTEST, FINETUNE, FORECAST, JobKind, progress_of
from kronos_client.core.stored import Stored

FORECASTS: Final = "/v1/forecasts"
FINETUNES: Final = "/v1/finetunes"
BACKTESTS: Final = "/v1/backtests"

WAITING: Final = "why no worker takes it now, and the command that starts one"

BEFORE: Final = "about how many jobs a worker takes before it, if `estimate` asks for it and it waits"
LEFT: Final = "about how long it waits, or is computed, if `estimate` asks for it and it is known"


class Accepted(BaseModel):
    """A job that was enqueued."""

    id: str
    state: State = "queued"
    url: str = Field(description="address of its state and result", examples=["/v1/forecasts/9b2f…"])
    queue: str | None = Field(default=None, description="the queue that it waits in", examples=["cpu"])
    waiting: str | None = Field(default=None, description=WAITING)

    @classmethod
    def from_stored(cls, job_id: str, queue: str, url: str, stored: Stored, **fields: Any) -> Self:
        """A job below this address."""
        state, url = state_of(stored), f"{url}/{job_id}"
        return cls(id=job_id, state=state, url=url, queue=queue, waiting=stored.waiting, **fields)


class JobSummary(BaseModel):
    """A job in a list."""

    id: str
    state: State
    submitted_at: datetime
    url: str = Field(description="address of its state and result", examples=["/v1/forecasts/9b2f…"])
    code: str | None = Field(default=None, description="of its error", examples=["HIGH_BELOW_LOW"])

    @classmethod
    def from_job(cls, job: ListedJob, url: str) -> Self:
        """A job below this address."""
        state = state_of(job.stored)
        return cls(
            id=job.id,
            state=state,
            submitted_at=datetime.fromtimestamp(job.submitted_at, UTC),
            url=f"{url}/{job.id}",
            code=job.stored.value.code if state in ("failed", "cancelled") else None,
        )


class JobsView(BaseModel):
    """A page of jobs, newest first."""

    jobs: list[JobSummary]
    next: str | None = Field(description=NEXT)


class AnyJobView(BaseModel):
    """What the views of all jobs have."""

    kind: ClassVar[JobKind[Any, Any]]

    id: str
    state: State
    waiting: str | None = Field(default=None, description=WAITING)
    jobs_before: int | None = Field(default=None, description=BEFORE)
    seconds_left: float | None = Field(default=None, description=LEFT)
    error: JobProblem | None = Field(default=None, description="once it failed or was cancelled")

    @classmethod
    def from_stored(cls, job_id: str, stored: Stored, **fields: Any) -> Self:
        """The view of a stored state. Raises JobError LOST if the job is of another kind."""
        state = state_of(stored)
        error = problem_of(stored.value) if state in ("failed", "cancelled") else None
        shown: dict[str, Any] = {"id": job_id, "state": state, "waiting": stored.waiting, "error": error}
        shown["result"] = cls.kind.result_of(stored) if state == "done" else None
        return cls(**shown, **cls._progress(stored), **fields)

    @classmethod
    def _progress(cls, stored: Stored) -> dict[str, Any]:
        """The published progress, if there is any that this version can read."""
        progress = cls.kind.state_of(stored).progress
        return {"progress": progress} if progress.model_fields_set else {}


class ForecastView(AnyJobView):
    """A forecast job."""

    kind = FORECAST

    bars_done: int | None = Field(default=None, description="over all paths of all series, while it runs")
    bars_total: int | None = None
    result: ForecastResult | None = Field(
        default=None, description="once it is done, as in docs/reference/contract.md"
    )

    @classmethod
    def _progress(cls, stored: Stored) -> dict[str, Any]:
        progress = progress_of(stored)
        names = ("bars_done", "bars_total")
        return {name: progress[name] for name in names if isinstance(progress.get(name), int)}


class FinetuneView(AnyJobView):
    """A finetuning job."""

    kind = FINETUNE

    progress: FinetuneProgress | None = Field(default=None, description="while it runs")
    result: FinetuneResult | None = Field(default=None, description="once it is done")


class BacktestView(AnyJobView):
    """A backtest."""

    kind = BACKTEST

    progress: BacktestProgress | None = Field(default=None, description="while it runs")
    result: BacktestResult | None = Field(
        default=None, description="once it is done; GET …/report has its report as a file"
    )
