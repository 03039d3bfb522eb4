"""Bars for a feed: what the task ``kronos.feed.append`` takes, and what an append answers."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from kronos_client.contract.forecast import CandleInput, Name, WireModel, check_ids
from kronos_client.contract.model_info import ResultModel, Texts
from kronos_client.contract.names import SCHEMA_VERSION


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
    changed: Texts = Field(description="the ids of the series with new or corrected bars")
