"""The options of a feed, checked as those of a job are."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Final, Unpack

import numpy as np
from numpy.typing import NDArray

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.results import MIN_PATHS_OF_QUANTILES
from kronos_client.core.forecast_request import fewer_paths, forecast_payload, with_defaults, without_defaults
from kronos_client.core.job import forecast_job
from kronos_client.core.options import DEFAULTS, FeedOptions
from kronos_client.feeds.blocks import TAIL_BARS
from kronos_client.settings import ClientSettings
from kronos_model.bars.calendar.exchange import load_exchange
from kronos_model.bars.calendar.sessions import DAY
from kronos_model.bars.calendar.spacing import instants_of
from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS
from kronos_model.bars.timestamps import Timestamps, load_timezone
from kronos_model.errors import KronosError, TimestampError

log = logging.getLogger(__name__)

SOME_TIMES: Final = ("2024-01-01T00:00", "2024-01-01T00:01", "2024-01-01T00:02")
EXCHANGE_YEAR: Final = 2024  # any: an exchange has one zone
NAMED_CALENDARS: Final = ("24/7", "weekdays")
JOB_PATHS: Final = 512
"""Sample paths of a job of several series. More would gain little, and a killed worker's job starts again."""


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
    keep: Sequence[str]
    calibration: str | None = None

    @classmethod
    def from_options(cls, settings: ClientSettings, **options: Unpack[FeedOptions]) -> "FeedSpec":
        """Raises JobError, which names the option at fault."""
        given: dict[str, Any] = {**options}
        for name, value in given.items():
            is_for_feeds = name in FeedOptions.__annotations__ or value is None or value is False
            _check(is_for_feeds, f"{name} belongs to one job: leave it out", name)
        names = ("bar_time", "closed_only", "corrections", "max_bars")
        own = {name: given.pop(name, DEFAULTS[name]) for name in names}
        own["calibration"] = given.pop("calibration", None)
        _check(own["calibration"] in (None, "adaptive"), "must be 'adaptive' or None", "calibration")
        keep = given.pop("keep", DEFAULTS["keep"])
        own["keep"] = [keep] if isinstance(keep, str) else list(keep)
        known = ", ".join(COLUMNS)
        _check({"close"} <= {*own["keep"]} <= {*COLUMNS}, f"must have close, and only {known}", "keep")
        most = settings.max_bars
        _check(own["bar_time"] in ("start", "end"), "bar_time must be 'start' or 'end'", "bar_time")
        _check(isinstance(own["closed_only"], bool), "closed_only must be True or False", "closed_only")
        _check(_is_count(own["corrections"], 0, TAIL_BARS), f"must be 0 to {TAIL_BARS}", "corrections")
        _check(_is_count(own["max_bars"], TAIL_BARS, most), f"must be {TAIL_BARS} to {most}", "max_bars")
        zones = {name: given.pop(name, None) for name in ("calendar", "timezone")}
        try:
            if zones["timezone"] is not None:
                load_timezone(zones["timezone"])
            if zones["calendar"] not in (None, *NAMED_CALENDARS):
                load_exchange(zones["calendar"], EXCHANGE_YEAR, EXCHANGE_YEAR)
        except KronosError as error:
            raise JobError.from_kronos(error) from None
        # Some bars, so that all other options are checked just as a worker will.
        bars = {name: [value] * 3 for name, value in zip(PRICE_COLUMNS, (1.0, 3.0, 1.0, 2.0), strict=True)}
        payload = forecast_payload(bars, timestamps=SOME_TIMES, limits=settings.limits(), **given)
        for text in fewer_paths(given, settings.limits()):
            log.warning("%s", text)
        forecast_job(payload, None, settings)
        is_enough = payload["sampling"]["sample_count"] >= MIN_PATHS_OF_QUANTILES
        text = f"must be {MIN_PATHS_OF_QUANTILES} or more for calibration='adaptive'"
        _check(is_enough or not own["calibration"], text, "sample_count")
        payload["output"]["events"] = [*map(plain_event, payload["output"]["events"])]
        for name in ("series", "schema_version"):
            del payload[name]
        return cls(job=json.loads(json.dumps(payload)), **zones, **own)

    def max_series(self, limits: Limits) -> int:
        """The most series of a job."""
        num_paths: int = self.job["sampling"]["sample_count"]
        return max(1, min(JOB_PATHS // num_paths, limits.max_series))

    @property
    def num_kept(self) -> int:
        """The bars of a series that are kept: with those that forecasts not scored yet have read."""
        return self.max_bars + int(self.job["pred_len"])

    @property
    def events(self) -> list[str]:
        """The events whose chances each forecast has."""
        return list(self.job["output"]["events"])

    def instants(self, times: Timestamps, zone: str | None) -> NDArray[np.int64] | None:
        """µs since 1970 in UTC of a series' times, by its zone; None if they are not known in UTC."""
        clock: tzinfo | None = load_timezone(zone) if zone else None
        if clock is None and self._exchange is not None and not times.is_aware:
            clock = load_exchange(self._exchange, EXCHANGE_YEAR, EXCHANGE_YEAR).zone
        return instants_of(times, clock) if times.is_aware or clock else None

    def ends(self, times: Timestamps, zone: str | None, spacing: int) -> NDArray[np.int64] | None:
        """When bars with these times end, as ``instants``: at the latest as the exchange closes."""
        clock = self.instants(times, zone)
        if clock is None or self.bar_time == "end":
            return clock
        ends = clock + spacing
        if self._exchange is not None and spacing <= DAY:
            year = int(times.wall[-1].astype("datetime64[Y]").astype(int)) + 1970
            with suppress(TimestampError):  # a year that the calendar does not have
                closes = load_exchange(self._exchange, year - 1, year).closes
                following = np.searchsorted(closes, clock, side="right")
                ends = np.minimum(ends, np.append(closes, ends[-1])[following])
        return ends

    @property
    def _exchange(self) -> str | None:
        return None if self.calendar in NAMED_CALENDARS else self.calendar

    def as_given(self) -> dict[str, Any]:
        """The options by the names that callers give them."""
        return _flat(vars(self))

    def to_json(self) -> str:
        """The same text for equal options."""
        stored = vars(self) | {"job": without_defaults(self.job)}
        return json.dumps(stored, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> "FeedSpec":
        """The reverse of ``to_json``."""
        stored = json.loads(text)
        return cls(**stored | {"job": with_defaults(stored["job"])})

    def first_difference(self, other: "FeedSpec") -> str | None:
        """The name of an option that ``other`` has with another value."""
        ours, theirs = (
            {**spec.as_given(), "events": [*map(plain_event, spec.events)]} for spec in (self, other)
        )
        names = sorted(ours.keys() | theirs.keys())
        return next((name for name in names if ours.get(name) != theirs.get(name)), None)


def plain_event(text: str) -> str:
    """An event with only the spaces that it needs, such as ``close>last+2% at end``."""
    return re.sub(r"\s*([<>]=?|[+-]|%)\s*", r"\1", " ".join(text.split())).replace("%", "% ")


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
