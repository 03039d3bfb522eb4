"""FeedUpdate: a new forecast of one series of a feed, or why there is none, as it stands in Redis."""

from typing import Any, Self

from pydantic import Field

from kronos_client.contract.errors import JobError
from kronos_client.contract.model_info import ModelInfo, ResultModel
from kronos_client.contract.results import SeriesForecast


class FeedFailure(ResultModel):
    """An error, as ``JobError`` has it."""

    code: str
    message: str
    field: str | None = None
    details: dict[str, Any] = Field(default_factory=dict)


class FeedUpdate(ResultModel):
    """What a job made of a version of one series: a forecast, or an error."""

    id: str = Field(default="", description="of the update, in order; empty in what ``latest`` holds")
    series: str
    version: int = Field(description="grows with each change of the series' bars")
    job_id: str
    last_time: str | None = Field(description="of the newest bar that was read")
    last: int | None = Field(description="its instant in µs since 1970")
    appended_at: float = Field(description="Unix time at which this version was appended, by Redis's clock")
    next_ends_at: float | None = Field(
        default=None, description="Unix time at which the next bar should have ended; null without a zone"
    )
    drift: str | None = Field(
        default=None,
        description="too_narrow or too_wide while the series' past 80 % intervals held much less or more",
    )
    forecast: SeriesForecast | None = None
    failure: FeedFailure | None = None
    model: ModelInfo | None = None
    device: str | None = None
    engine: str | None = None
    warnings: tuple[str, ...] = Field(default=(), strict=False)

    @property
    def error(self) -> JobError | None:
        """Why there is no forecast."""
        known = self.failure
        return None if known is None else JobError(known.code, known.message, known.field, known.details)

    def with_error(self, error: JobError) -> Self:
        """The same version with this error."""
        code, message, field, details = error.args
        failure = FeedFailure(code=code, message=message, field=field, details=details)
        return self.model_copy(update={"failure": failure})
