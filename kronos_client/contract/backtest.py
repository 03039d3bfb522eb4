"""A backtest as a job: its fields, its progress and its result, and reading one from outside."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import JobData
from kronos_client.contract.forecast import Count, Lookback, Name, Seed, WireModel
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.jobs import check_data_payload, check_most, prepare_instruments, read_fields
from kronos_client.contract.model_info import ResultModel
from kronos_client.contract.names import SCHEMA_VERSION, Priority
from kronos_model.evaluation.naive import NAIVE_TITLES
from kronos_model.finetuning.config_parts import ReadConfig

MAX_MODELS: Final = 8
MAX_COST_BPS: Final = 1000


def read_moment(text: str) -> date:
    """A date, or a time with or without an offset. Raises ValueError."""
    return date.fromisoformat(text) if len(text) <= len("2024-06-18") else datetime.fromisoformat(text)


def _moment(text: str) -> str:
    try:
        read_moment(text)
    except ValueError:
        form = "a date such as 2024-06-18, or a time such as 2024-06-18T09:30:00"
        raise PydanticCustomError("moment", form) from None
    return text


Moment = Annotated[str, AfterValidator(_moment)]


class Reading(ReadConfig):
    """How to read the files, as in a finetuning job's config."""

    model_config = ConfigDict(strict=True)


class BacktestJob(WireModel):
    """One job for the task ``kronos.backtest``: forecast windows of the past, and score the forecasts."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    data: JobData
    reading: Reading = Field(default=Reading(), description="how to read the files")
    models: Annotated[tuple[Name | None, ...], Field(strict=False, min_length=1, max_length=MAX_MODELS)] = (
        Field(default=(None,), description="to compare, as a forecast job names one; null: the workers' own")
    )
    windows: Count | None = Field(
        default=None,
        description="the most windows of each instrument: evenly spread, or with stride the last ones; by "
        "default 40, or with stride all",
    )
    stride: Count | None = Field(default=None, description="bars from one window to the next")
    lookback: Lookback = Field(
        default="auto", description="bars that all models read; auto: the fewest that one reads by itself"
    )
    horizon: Count = Field(default=24, description="bars to forecast in each window")
    samples: Annotated[Count, Field(ge=2)] = Field(default=30, description="paths of each window")
    seed: Seed = Field(default=0, description="of all sampling")
    top: Count = Field(default=5, description="instruments on each side of the report's portfolio")
    cost_bps: float = Field(default=10, ge=0, le=MAX_COST_BPS, description="of its trades, in basis points")
    start: Moment | None = Field(
        default=None, description="only windows whose forecast begins at this date or time, or later"
    )
    end: Moment | None = Field(default=None, description="only windows whose forecast ends by then")
    deadline_s: float | None = Field(
        default=None, gt=0, description="seconds from submitted_at, else from receipt"
    )
    submitted_at: float | None = Field(default=None, ge=0, description="Unix time in seconds")
    priority: Priority = Field(default="normal", description="of this job; its forecasts have low priority")

    device: ClassVar[str] = "auto"
    """Any worker for finetuning can run the job, because forecast workers compute the forecasts."""
    allow_fallback: ClassVar[bool] = True

    @property
    def moments(self) -> dict[str, date | None]:
        """``start`` and ``end``, as dates or times."""
        given = {"start": self.start, "end": self.end}
        return {name: text and read_moment(text) for name, text in given.items()}  # type: ignore[misc]


class BacktestProgress(ResultModel):
    """The stored meta of a job with state PROGRESS. Unknown values are null."""

    stage: Literal["reading", "waiting", "forecasting", "scoring"] | None = Field(
        default=None, description="waiting: for a forecast worker"
    )
    forecasts_done: int | None = Field(default=None, description="of windows times models")
    forecasts_total: int | None = None
    seconds_left: float | None = Field(default=None, description="of the forecasts, as estimated")


class BacktestTimings(ResultModel):
    """Milliseconds."""

    queued: float = Field(ge=0, description="from submission to the first start")
    total: float = Field(ge=0, description="from submission to the result")


class BacktestResult(ResultModel):
    """The result of a backtest."""

    report: dict[str, Any] = Field(
        repr=False, description="the content of report.json: see docs/use/backtesting.md"
    )
    queue: str
    worker: str
    timings_ms: BacktestTimings
    num_attempts: int = Field(ge=1, description="how often it was started")
    resumed: bool = Field(description="whether it continued from forecasts of an earlier attempt")


def parse_backtest_job(payload: object, limits: Limits) -> BacktestJob:
    """Check a job from decoded JSON completely, inline candles included. The worker alone reads files.

    Raises:
        JobError: Names the first field at fault; nothing else is raised.
    """
    job = read_fields(BacktestJob, payload, limits, check_data_payload)
    check_models(job.models)
    check_most(job.samples, limits.max_sample_count, "samples", "sample paths of a window")
    check_most(job.horizon, limits.max_pred_len, "horizon", "bars ahead", ErrorCode.PRED_LEN_TOO_LONG)
    if job.lookback != "auto":
        check_most(job.lookback, limits.max_bars, "lookback", "bars in a series")
    if job.data.instruments is not None:
        if job.reading != Reading():
            message = "reading is for files: leave it out, or name files in data.path"
            raise JobError(ErrorCode.BAD_VALUE, message, "reading")
        prepare_instruments(job.data.instruments)
    return job


def check_models(models: Sequence[str | None]) -> None:
    """Refuse models that a report cannot distinguish. Raises JobError."""
    if not models or len(set(models)) < len(models):
        raise JobError(ErrorCode.BAD_VALUE, "models must be one or more different names", "models")
    if naive := NAIVE_TITLES.keys() & set(models):
        text = f"models cannot be named {min(naive)}: the report has a naive forecast of that name"
        raise JobError(ErrorCode.BAD_VALUE, text, "models")
