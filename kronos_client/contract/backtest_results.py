"""A backtest's progress while it runs as a job, and its result."""

from typing import Any, Literal

from pydantic import Field

from kronos_client.contract.model_info import ResultModel


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

    report: dict[str, Any] = Field(description="the content of report.json: see docs/use/backtesting.md")
    queue: str
    worker: str
    timings_ms: BacktestTimings
    num_attempts: int = Field(ge=1, description="how often it was started")
    resumed: bool = Field(description="whether it continued from forecasts of an earlier attempt")
