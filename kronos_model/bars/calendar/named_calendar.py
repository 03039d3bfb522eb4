"""Future timestamps by a named calendar: an exchange's, "24/7", or "weekdays"."""

from collections.abc import Iterator
from datetime import tzinfo
from functools import lru_cache
from itertools import chain, count
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.calendar.exchange import Exchange, SessionBars, load_exchange
from kronos_model.bars.calendar.sessions import (
    DAY,
    MAX_HISTORY,
    MAX_TRADING_DAYS,
    SATURDAY,
    CannotInfer,
    common_spacing,
    weekday_of,
)
from kronos_model.bars.calendar.spacing import (
    SECOND,
    Inferred,
    at_instants,
    at_spacing,
    at_walls,
    before_year_10000,
    common_clock,
    infer_future,
    instants_of,
    wall_and_days,
    without_skipped,
)
from kronos_model.bars.timestamps import NUM_SHARED_TIMES, Timestamps, offset_s
from kronos_model.errors import TimestampError

ALWAYS: Final = "24/7"
WEEKDAYS: Final = "weekdays"
MAX_DAYS_APART: Final = 3
"""Bars further apart are weekly or monthly."""
MIN_MATCH: Final = 0.9
"""Share of the lookback's newest bars that an exchange's sessions must contain."""
MIN_SESSIONS_PER_YEAR: Final = 200
FIRST_YEAR, LAST_YEAR = 1970, 2200


@lru_cache(maxsize=NUM_SHARED_TIMES)
@before_year_10000()
def follow_calendar(name: str, lookback: Timestamps, num_bars: int, zone: tzinfo | None = None) -> Inferred:
    """The ``num_bars`` timestamps after the lookback's last in which the calendar trades.

    They keep the lookback's form and spacing. Naive times are read on the zone's clock, else on the
    exchange's own. Weekly and monthly bars are inferred from the lookback, as without a calendar.

    Raises:
        PackageMissing: ``exchange_calendars`` is not installed.
        TimestampError: CALENDAR_UNKNOWN; CANNOT_INFER_TIMESTAMPS, also for bars outside its sessions.
    """
    wall, days, is_daily = wall_and_days(lookback)
    clock = common_clock(wall)
    if is_daily and (clock is None or common_spacing(days) > MAX_DAYS_APART):
        return infer_future(lookback, num_bars, zone)
    if is_daily and clock is not None:
        days = without_skipped(days, clock, lookback, zone)
    rule = f"the calendar {name}"
    if name == ALWAYS:
        if clock is not None and is_daily:
            every_day = count((int(days[-1]) + 1) * DAY + clock, DAY)
            return Inferred(at_walls(lookback, every_day, num_bars, zone), rule)
        instants = instants_of(lookback, zone)
        spacing = common_spacing(instants)
        return Inferred(at_spacing(lookback, int(instants[-1]), spacing, num_bars, zone), rule)
    if name == WEEKDAYS:
        times = np.array([clock]) if clock is not None and is_daily else _times_of_day(wall)
        spacing = 0 if is_daily else common_spacing(np.unique(wall))
        walls = _on_weekdays(int(wall[-1]), times)
        return Inferred(at_walls(lookback, walls, num_bars, zone, spacing), rule)
    first, last = (int(lookback.wall[row].astype("datetime64[Y]").astype(int)) + 1970 for row in (0, -1))
    if first < FIRST_YEAR or last > LAST_YEAR:
        raise CannotInfer(f"the calendar {name} does not reach to {first if first < FIRST_YEAR else last}")
    newest = max(first, last - 1)
    exchange = load_exchange(name, newest, last + 1 + num_bars // MIN_SESSIONS_PER_YEAR)
    if clock is not None and is_daily:
        _check_match(name, lookback, np.isin(days, exchange.days) | (days < exchange.days[0]))
        ahead = _enough(exchange.days[exchange.days > days[-1]] * DAY + clock, num_bars, name)
        return Inferred(at_walls(lookback, ahead.tolist(), num_bars, zone), rule)
    return _intraday(name, exchange, lookback, num_bars, zone)


def _intraday(
    name: str, exchange: Exchange, lookback: Timestamps, num_bars: int, zone: tzinfo | None
) -> Inferred:
    """Bars at the lookback's spacing from the start of each span in which the exchange trades."""
    clock = zone or exchange.zone
    instants = instants_of(lookback, clock)
    spacing = common_spacing(instants)
    is_recent = (instants > instants[-1] - MAX_HISTORY) & (instants >= exchange.starts[0])
    recent = instants[is_recent]
    if not len(recent):
        _check_match(name, lookback, is_recent)
    ways = [
        SessionBars(exchange, spacing, with_start, with_end)
        for with_start, with_end in ((True, False), (False, True), (True, True))
    ]
    bars = max(ways, key=lambda way: _overlap(way, recent))
    _check_match(name, lookback, ~is_recent | bars.contain(instants), len(recent))
    future = _enough(bars.after(int(instants[-1]), num_bars), num_bars, name).tolist()
    rule = f"the calendar {name}"
    if lookback.offsets_s is None:
        times = at_instants(lookback, future, num_bars, clock)
        return Inferred(times, f"{rule}, on the clock of {clock}")
    last_wall = lookback.wall[-1].item()
    if zone is None and offset_s(last_wall, exchange.zone) != int(lookback.offsets_s[-1]):
        shifted = (at + int(lookback.offsets_s[-1]) * SECOND for at in future)
        return Inferred(at_walls(lookback, shifted, num_bars, None), rule)
    return Inferred(at_instants(lookback, future, num_bars, clock), rule, is_on_clock=True)


def _overlap(bars: SessionBars, recent: NDArray[np.int64]) -> float:
    """The bars that both have, as a share of those that one has."""
    num_shared = int(bars.contain(recent).sum())
    return num_shared / (bars.count(int(recent[0]), int(recent[-1])) + len(recent) - num_shared)


def _check_match(
    name: str, lookback: Timestamps, is_match: NDArray[np.bool_], num_checked: int | None = None
) -> None:
    num_bad, num_checked = int((~is_match).sum()), num_checked or len(is_match)
    if num_bad <= (1 - MIN_MATCH) * num_checked:
        return
    text = f"{num_bad} of {num_checked} bars lie outside the sessions of {name}, such as "
    text += (
        f"{lookback.texts[int(np.argmin(is_match))]!r}: give the calendar that they follow, or the timezone "
    )
    raise TimestampError(f"{text}of their clock", code="CANNOT_INFER_TIMESTAMPS", field="calendar")


def _enough(times: NDArray[np.int64], num_bars: int, name: str) -> NDArray[np.int64]:
    if len(times) < num_bars:
        raise CannotInfer(f"the calendar {name} has {len(times)} of {num_bars} bars ahead")
    return times


def _times_of_day(wall: NDArray[np.int64]) -> NDArray[np.int64]:
    """Times of day with a bar on at least half of the last days that have bars."""
    days = np.unique(wall // DAY)[-MAX_TRADING_DAYS:]
    times, counts = np.unique(wall[wall >= days[0] * DAY] % DAY, return_counts=True)
    usual = np.asarray(times[2 * counts >= len(days)])
    if not len(usual):
        raise CannotInfer("no time of day has a bar on every second day")
    return usual


def _on_weekdays(last: int, times: NDArray[np.int64]) -> Iterator[int]:
    """Times after ``last`` (µs), at these times of day, on Mondays to Fridays."""
    days = (day for day in count(last // DAY) if weekday_of(day) < SATURDAY)
    every = chain.from_iterable((day * DAY + times).tolist() for day in days)
    return (at for at in every if at > last)
