"""The options of a feed, checked as those of a job are."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Unpack

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.forecast_request import forecast_payload
from kronos_client.core.job import forecast_job
from kronos_client.core.options import ForecastOptions
from kronos_client.feeds.window import TAIL_BARS
from kronos_client.settings import ClientSettings
from kronos_model.bars.calendar.exchange import load_exchange
from kronos_model.bars.columns import PRICE_COLUMNS
from kronos_model.bars.timestamps import load_timezone
from kronos_model.errors import KronosError

OF_ONE_JOB: Final = ("series_ids", "timestamps", "future_timestamps", "stream", "paths", "deadline_s")

SOME_TIMES: Final = ("2024-01-01T00:00", "2024-01-01T00:01", "2024-01-01T00:02")
EXCHANGE_YEAR: Final = 2024  # any: an exchange has one zone
NAMED_CALENDARS: Final = ("24/7", "weekdays")


class FeedOptions(ForecastOptions, total=False):
    """Options of a feed: those of a forecast that do not belong to one job, and its own.

    Attributes:
        bar_time: Whether a bar's time is its "start" (default) or its "end".
        closed_only: Whether bars that have not ended are held back (True).
        corrections: The last bars of a series that an append may change (3).
        max_bars: The window of each series (512): the bars that are kept.
    """

    bar_time: Literal["start", "end"]
    closed_only: bool
    corrections: int
    max_bars: int


@dataclass(frozen=True)
class FeedSpec:
    """A feed's checked options.

    Attributes:
        job: The part of each forecast job that is not its series.
    """

    job: Mapping[str, Any]
    calendar: str | None
    timezone: str | None
    bar_time: str
    closed_only: bool
    corrections: int
    max_bars: int

    @classmethod
    def from_options(cls, settings: ClientSettings, **options: Unpack[FeedOptions]) -> "FeedSpec":
        """Raises JobError, which names the option at fault."""
        given: dict[str, Any] = {**options}
        own = {
            "bar_time": given.pop("bar_time", "start"),
            "closed_only": given.pop("closed_only", True),
            "corrections": given.pop("corrections", 3),
            "max_bars": given.pop("max_bars", 512),
        }
        most = settings.max_bars
        _check(own["bar_time"] in ("start", "end"), "bar_time must be 'start' or 'end'", "bar_time")
        _check(isinstance(own["closed_only"], bool), "closed_only must be True or False", "closed_only")
        _check(_is_count(own["corrections"], 0, TAIL_BARS), f"must be 0 to {TAIL_BARS}", "corrections")
        _check(_is_count(own["max_bars"], TAIL_BARS, most), f"must be {TAIL_BARS} to {most}", "max_bars")
        for name in OF_ONE_JOB:
            _check(given.get(name) in (None, False), f"{name} belongs to one job: leave it out", name)
        given.setdefault("missing", "error")
        zones = {name: given.pop(name, None) for name in ("calendar", "timezone")}
        try:
            if zones["timezone"] is not None:
                load_timezone(zones["timezone"])
            if zones["calendar"] not in (None, *NAMED_CALENDARS):
                load_exchange(zones["calendar"], EXCHANGE_YEAR, EXCHANGE_YEAR)
        except KronosError as error:
            raise JobError.from_kronos(error) from None
        # Some bars, so that all other options are checked just as a worker will.
        bars = dict.fromkeys(PRICE_COLUMNS, [1.0] * 3)
        payload = forecast_payload(bars, timestamps=SOME_TIMES, limits=settings.limits(), **given)
        forecast_job(payload, None, settings)
        for name in ("series", "schema_version"):
            del payload[name]
        return cls(job=json.loads(json.dumps(payload)), **zones, **own)

    def to_json(self) -> str:
        """The same text for equal options."""
        return json.dumps(vars(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "FeedSpec":
        """The reverse of ``to_json``."""
        return cls(**json.loads(text))

    def first_difference(self, other: "FeedSpec") -> str | None:
        """The name of an option that ``other`` has with another value."""
        ours, theirs = _flat(vars(self)), _flat(vars(other))
        names = sorted(ours.keys() | theirs.keys())
        return next((name for name in names if ours.get(name) != theirs.get(name)), None)


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names that callers give them."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return flat


def _is_count(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _check(holds: bool, text: str, field: str) -> None:
    if not holds:
        text = text if text.startswith(field) else f"{field} {text}"
        raise JobError(ErrorCode.BAD_VALUE, text, field)
