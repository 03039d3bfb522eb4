"""The sessions of an exchange, from the package ``exchange_calendars``: holidays, half days, lunch breaks."""

from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronos_model.errors import PackageMissing, TimestampError

Times = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Exchange:
    """Sessions of some years, ascending.

    Attributes:
        zone: the exchange's own.
        days: the date of each session, in days since 1970.
        starts, ends: of the spans within which it trades, in µs since 1970 in UTC; two for a session with a
            lunch break.
        closes: of the sessions, in µs since 1970 in UTC.
    """

    zone: tzinfo
    days: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    closes: NDArray[np.int64]


@lru_cache(maxsize=64)
def load_exchange(name: str, first_year: int, last_year: int) -> Exchange:
    """The sessions from the first year to the last one, or as far as they are known.

    Raises:
        PackageMissing: ``exchange_calendars`` is not installed.
        TimestampError: CALENDAR_UNKNOWN; CANNOT_INFER_TIMESTAMPS for years that the calendar does not have.
    """
    try:
        import exchange_calendars  # it imports pandas
    except ImportError:
        text = f"the calendar {name} needs the package exchange_calendars: install kronos-worker[calendars]"
        raise PackageMissing(text, field="calendar") from None
    calendars = exchange_calendars.calendar_utils.global_calendar_dispatcher
    if name not in calendars.get_calendar_names(include_aliases=True):
        text = f"{ascii(name)[:40]} is no calendar: give an exchange's code such as XNYS, 24/7 or weekdays"
        raise TimestampError(text, code="CALENDAR_UNKNOWN", field="calendar")
    for end in range(last_year, first_year - 1, -1):
        try:
            calendar = exchange_calendars.get_calendar(name, start=f"{first_year}-01-01", end=f"{end}-12-31")
        except ValueError:  # its holidays are known up to an earlier year
            continue
        return _read(calendar)
    text = f"the calendar {name} has no sessions in {first_year}: give the future times"
    raise TimestampError(text, code="CANNOT_INFER_TIMESTAMPS", field="calendar")


def _read(calendar: Any) -> Exchange:
    schedule = calendar.schedule

    def instants(title: str) -> NDArray[np.datetime64]:
        return np.asarray(schedule[title].dt.tz_localize(None).to_numpy(), dtype="datetime64[us]")

    opens, closes, pauses, resumes = map(instants, ("open", "close", "break_start", "break_end"))
    has_break = ~np.isnat(pauses)
    starts = np.sort(np.concatenate([opens, resumes[has_break]]))
    ends = np.sort(np.concatenate([np.where(has_break, pauses, closes), closes[has_break]]))
    days = schedule.index.to_numpy().astype("datetime64[D]").astype(np.int64)
    spans = (starts, ends, closes)
    return Exchange(calendar.tz, days, *(each.astype(np.int64) for each in spans))


@dataclass(frozen=True, eq=False)
class SessionBars:
    """Bars at a constant spacing from the start of each span in which an exchange trades.

    Vendors write a bar's time at its start, at its end, or with both ends of a span. All times are in µs
    since 1970 in UTC.
    """

    exchange: Exchange
    spacing: int
    with_start: bool
    with_end: bool

    def contain(self, instants: Times) -> NDArray[np.bool_]:
        """Whether there is a bar at each of these times."""
        span = np.searchsorted(self.exchange.starts, instants, side="right") - 1
        since = instants - self.exchange.starts[span]
        is_inside = (span >= 0) & (instants < self.exchange.ends[span]) & (since % self.spacing == 0)
        if not self.with_start:
            is_inside &= since > 0
        return np.asarray(is_inside | np.isin(instants, self._own_ends))

    def count(self, first: int, last: int) -> int:
        """The number of bars from one time to another, both included."""
        starts, ends = self.exchange.starts, self.exchange.ends
        low = np.maximum(-((starts - first) // self.spacing), 0 if self.with_start else 1)
        high = (np.minimum(ends - 1, last) - starts) // self.spacing
        num_ends = int(((self._own_ends >= first) & (self._own_ends <= last)).sum())
        return int(np.maximum(high - low + 1, 0).sum()) + num_ends

    def after(self, instant: int, most: int) -> Times:
        """The first bars after a time, at most ``most``."""
        found: list[int] = []
        own_ends = set(self._own_ends.tolist())
        spans = zip(self.exchange.starts.tolist(), self.exchange.ends.tolist(), strict=True)
        for start, end in spans:
            if end < instant:
                continue
            low = max((instant - start) // self.spacing + 1, 0 if self.with_start else 1)
            times = range(start + low * self.spacing, end, self.spacing)
            found.extend(times[: most - len(found)])
            if end in own_ends and end > instant:
                found.append(end)
            if len(found) >= most:
                break
        return np.array(found[:most], dtype=np.int64)

    @property
    def _own_ends(self) -> Times:
        """The ends of spans that have a bar, and are not the start of the next span with one already."""
        ends = self.exchange.ends if self.with_end else self.exchange.ends[:0]
        return np.setdiff1d(ends, self.exchange.starts) if self.with_start else ends
