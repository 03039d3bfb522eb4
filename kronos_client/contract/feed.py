"""Feeds: the bars that the task ``kronos.feed.append`` takes, its answer, and the updates that come back."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from kronos_client.contract.errors import JobError
from kronos_client.contract.forecast import CandleInput, Name, WireModel, check_ids
from kronos_client.contract.manifest import Manifest
from kronos_client.contract.model_info import ModelInfo, ResultModel, Texts
from kronos_client.contract.names import SCHEMA_VERSION
from kronos_client.contract.results import SeriesForecast, Values


class NewBars(CandleInput):
    """Bars of one series, in any overlap with those that are known."""

    timezone: Annotated[str, Field(max_length=100)] | None = Field(
        default=None, description="IANA time zone whose clock the timestamps follow"
    )


class FeedAppendJob(WireModel):
    """One job for the task ``kronos.feed.append``. It is done whole or not at all."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    feed: Name = Field(description="name of a feed that exists")
    series: Annotated[tuple[NewBars, ...], Field(strict=False, min_length=1)]
    replace: bool = Field(default=False, description="exchange the series whole, such as after a split")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        check_ids(self.series, "series")
        return self


class Appended(ResultModel):
    """What bars changed in a feed. The same bars once more change nothing."""

    num_new: int = Field(description="bars that were not known")
    num_corrected: int = Field(description="bars that were known with other values")
    num_held_back: int = Field(description="bars that have not ended yet: append them again later")
    held_until: str | None = Field(
        default=None, description="when the last of these ends, as ISO 8601 in UTC; null without one"
    )
    changed: Texts = Field(description="the ids of the series with new or corrected bars")
    warnings: Texts = Field(default=(), description="for people, about these bars")


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
    last_close: float | None = Field(
        default=None, description="close of the newest bar with prices that was read; null in older updates"
    )
    appended_at: float = Field(description="Unix time at which its newest bar was appended, by Redis's clock")
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


class PastForecast(ResultModel):
    """What is kept of an earlier forecast of a series until all of its bars have come."""

    version: int = Field(description="of the bars that it was made from")
    model: str = Field(description="id and revision")
    timestamps: Texts
    quantiles: dict[str, dict[str, Values]] = Field(
        description="of the close, by level: the median, and the ends of the intervals of 50, 80 and 95 %"
    )
    manifest: Manifest | None = Field(default=None, description="what `kronos replay` computes it again from")


class FeedSeries(ResultModel):
    """A series of a feed: its bars, and the forecasts of it that are kept."""

    bars: dict[str, list[Any]] = Field(
        description="its window: `timestamps` and the columns that it has; null for a missing value"
    )
    newest: FeedUpdate | None = Field(default=None, description="its newest forecast, or why there is none")
    past: Annotated[tuple[PastForecast, ...], Field(strict=False)] = Field(
        default=(), description="forecasts before the newest one, whose bars have not all come, in order"
    )
