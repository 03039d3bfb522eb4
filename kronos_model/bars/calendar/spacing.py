"""The timestamps of future bars, inferred from the lookback's own spacing.

The first rule that fits applies:

- **One bar a day or fewer.** Monthly bars (any whole number of months apart) on the same day of the month,
  its last day, or its first or last weekday; weekly bars (any whole number of weeks) on the same weekday;
  bars a constant number of days apart; daily bars on the weekdays on which the lookback has bars. A lookback
  without a weekend does not show whether Saturdays trade. All keep the wall-clock time.
- **Constant spacing within the day.** A lookback without a break is continued without one, by instant.
  Hours that daylight saving skips are skipped; an hour that repeats appears twice if bars have offsets, once
  if they are naive. No break is invented. A warning is given if the lookback is shorter than a day, or if it
  shows no weekend and its future reaches into the time from Friday noon to Sunday.
- **Sessions**, if the lookback shows breaks: see ``sessions.py``.

One missing bar, or a day off, does not hide a rule. Future days off are not predicted. If no rule fits, or
the lookback does not show enough for the request, an error is raised.
"""

from calendar import monthrange
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, date, datetime, time, timedelta, tzinfo
from itertools import count, islice
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronos_model.bars.calendar.sessions import (
    DAY,
    EPOCH,
    FRIDAY_NOON,
    MICROSECOND,
    MONDAY,
    SHORTEST_BREAK,
    WEEK,
    bridge_outages,
    common_spacing,
    session_walls,
    to_datetime,
)
from kronos_model.bars.calendar.weekdays import SATURDAY, CannotInfer, Weekdays, weekday_of
from kronos_model.bars.timestamps import Timestamps, exists_in, offset_s, write_like

HOUR: Final = DAY // 24
MID_WEEKEND: Final = (FRIDAY_NOON + DAY, FRIDAY_NOON + 2 * DAY)
"""A market that closes for the weekend is closed throughout this time."""
LAST_TIME: Final = np.datetime64("9999-12-31T23:59:59.999999")

MIN_BARS: Final = 3
"""Fewer bars show no repeating spacing."""

MAX_EXCEPTIONS: Final = 0.1
"""Share of a lookback's bars that may break the rule: days off, a missing bar."""

MAX_DAYS_OFF: Final = 0.25
"""Share of a daily lookback's trading days that may be missing: holidays cluster."""


@dataclass(frozen=True)
class Inferred:
    """Future timestamps, written like the lookback's, and a warning if they rest on an assumption."""

    timestamps: Timestamps
    warning: str | None = None


def infer_future(lookback: Timestamps, num_bars: int, zone: tzinfo | None = None) -> Inferred:
    """The ``num_bars`` (at least 1) timestamps after the lookback's last.

    They keep its form. Offsets are the last bar's; with ``zone``, that zone's at the time. Naive timestamps
    with a zone follow that zone's clock.

    Raises TimestampError (CANNOT_INFER_TIMESTAMPS) if the lookback does not show how it continues.
    """
    if len(lookback) < MIN_BARS:
        raise CannotInfer(f"{len(lookback)} bars are too few; {MIN_BARS} are the least")
    try:
        return _continue(lookback, num_bars, zone)
    except OverflowError:
        raise CannotInfer("they would lie beyond the year 9999") from None


def _continue(lookback: Timestamps, num_bars: int, zone: tzinfo | None) -> Inferred:
    wall = lookback.wall.astype(np.int64)
    is_daily = bool(np.all(np.diff(wall // DAY) > 0))
    clock = _common_clock(wall)
    if is_daily and clock is not None:
        rule = _by_month(wall, clock) or _by_week(wall, clock) or _by_day(wall, clock)
        if rule is not None:
            return Inferred(_at_walls(lookback, list(islice(rule, num_bars)), zone))
    instants = _instants(lookback, zone)
    spacing = _constant_spacing(instants) or _constant_spacing(wall)
    if spacing is not None:
        future = _at_spacing(lookback, int(instants[-1]), spacing, num_bars, zone)
        return Inferred(future, _warn_of_breaks(lookback, future))
    if is_daily:
        raise CannotInfer("the bars are days apart, but not evenly")
    times, warning = session_walls(wall, num_bars, lambda at: zone is None or exists_in(zone, at))
    return Inferred(_at_walls(lookback, times, zone), warning)


def _by_month(wall: NDArray[np.int64], clock: time) -> Iterator[datetime] | None:
    """Bars a whole number of months apart."""
    dates = [to_datetime(at).date() for at in wall]
    months = np.array([12 * day.year + day.month - 1 for day in dates])
    step = _common_step(months)
    if step is None:
        return None
    day_of_month = max(day.day for day in dates)
    for choose in (
        lambda year, month: date(year, month, min(day_of_month, monthrange(year, month)[1])),
        _last_weekday,
        _first_weekday,
    ):
        if _nearly_all([choose(day.year, day.month) == day for day in dates]):
            return _months_from(int(months[-1]), step, choose, clock)
    return None


def _months_from(last: int, step: int, choose: Callable[[int, int], date], clock: time) -> Iterator[datetime]:
    for month in count(last + step, step):
        if month // 12 > MAXYEAR:
            raise OverflowError
        yield datetime.combine(choose(month // 12, month % 12 + 1), clock)


def _last_weekday(year: int, month: int) -> date:
    last = date(year, month, monthrange(year, month)[1])
    return last - timedelta(days=max(0, last.weekday() - SATURDAY + 1))


def _first_weekday(year: int, month: int) -> date:
    first = date(year, month, 1)
    return first + timedelta(days=7 - first.weekday() if first.weekday() >= SATURDAY else 0)


def _by_week(wall: NDArray[np.int64], clock: time) -> Iterator[datetime] | None:
    """Bars a whole number of weeks apart. A bar that a holiday moved within its week does not matter."""
    mondays = (wall // DAY + 3) // 7  # weeks since the Monday before 1970
    step = _common_step(mondays)
    weekdays = weekday_of(wall // DAY)
    weekday = int(np.bincount(weekdays).argmax())
    if step is None or not _nearly_all(weekdays == weekday):
        return None
    monday = to_datetime(wall[-1]).date() - timedelta(days=int(weekdays[-1]))
    return (
        datetime.combine(monday + timedelta(weeks=weeks, days=weekday), clock) for weeks in count(step, step)
    )


def _by_day(wall: NDArray[np.int64], clock: time) -> Iterator[datetime] | None:
    """Bars on the weekdays that the lookback trades on, or a constant number of days apart."""
    days = wall // DAY
    last = to_datetime(wall[-1]).date()
    step = common_spacing(days)
    if step > 1 and np.all(np.diff(days) == step):
        return (datetime.combine(last + timedelta(days=ahead), clock) for ahead in count(step, step))
    weekdays = Weekdays.of(days)
    if weekdays.num_missing > MAX_DAYS_OFF * len(days) or step > 3:
        return None
    return (datetime.combine(day, clock) for day in weekdays.after(last))


def _common_clock(wall: NDArray[np.int64]) -> time | None:
    """The time of day that daily bars share; the newest bar's if another zone's summer time shifts it."""
    clocks = wall % DAY
    newest = int(clocks[-1])
    distinct, counts = np.unique(clocks, return_counts=True)
    if _nearly_all(clocks == distinct[counts.argmax()]):
        return to_datetime(distinct[counts.argmax()]).time()
    return to_datetime(newest).time() if len(distinct) == 2 and np.ptp(distinct) == HOUR else None


def _common_step(values: NDArray[np.int64]) -> int | None:
    """The distance between neighbours, if nearly all have it and the others a multiple of it."""
    steps = np.diff(values)
    step = common_spacing(values)
    if step < 1 or np.any(steps < 1) or np.any(steps % step) or not _nearly_all(steps == step):
        return None
    return step


def _constant_spacing(clock: NDArray[np.int64]) -> int | None:
    spacing = common_spacing(clock)
    bridged = bridge_outages(clock, spacing, max(SHORTEST_BREAK, 2 * spacing))  # at least a single bar
    return spacing if np.all(np.diff(bridged) == spacing) else None


def _nearly_all(fits: ArrayLike) -> bool:
    flags = np.asarray(fits)
    exceptions = len(flags) - np.count_nonzero(flags)
    return bool(exceptions <= max(MAX_EXCEPTIONS * len(flags), len(flags) >= 5))


def _warn_of_breaks(lookback: Timestamps, future: Timestamps) -> str | None:
    """A warning if the lookback is too short to show a break."""
    if lookback.instants[-1] - lookback.instants[0] < np.timedelta64(1, "D"):
        unseen = "night"
    elif _in_week(future, FRIDAY_NOON, WEEK).any() and not _in_week(lookback, *MID_WEEKEND).any():
        unseen = "weekend"
    else:
        return None
    return (
        f"The lookback shows no break, but it does not reach over a {unseen} either: its spacing continues "
        "without one. If the market closes, pass future_timestamps or a longer lookback."
    )


def _in_week(timestamps: Timestamps, start: int, end: int) -> NDArray[np.bool_]:
    since_monday = (timestamps.wall.astype(np.int64) - MONDAY) % WEEK
    return (since_monday >= start) & (since_monday < end)


def _instants(lookback: Timestamps, zone: tzinfo | None) -> NDArray[np.int64]:
    """µs since 1970 in UTC; of the wall clock if there are neither offsets nor a zone."""
    if zone is None or lookback.is_aware:
        return lookback.instants.astype(np.int64)
    times: list[datetime] = lookback.wall.tolist()
    offsets_us = np.array([offset_s(at, zone) for at in times], dtype=np.int64) * 1_000_000
    instants: NDArray[np.int64] = lookback.wall.astype(np.int64) - offsets_us
    return instants


def _at_walls(lookback: Timestamps, times: list[datetime], zone: tzinfo | None) -> Timestamps:
    wall = np.array(times, dtype="datetime64[us]")
    if lookback.offsets_s is None:
        return _written(lookback, wall, None)
    if zone is None:
        return _written(lookback, wall, np.full(len(wall), lookback.offsets_s[-1]))
    newest = int(lookback.instants[-1].astype(np.int64))
    offsets_s = np.empty(len(wall), dtype=np.int64)
    for row, at in enumerate(times):
        offsets_s[row] = offset_s(at, zone)
        if _instant(at, int(offsets_s[row])) <= newest:  # the second of two hours as clocks go back
            offsets_s[row] = offset_s(at.replace(fold=1), zone)
        newest = _instant(at, int(offsets_s[row]))
    return _written(lookback, wall, offsets_s)


def _instant(wall: datetime, offset: int) -> int:
    """µs since 1970 in UTC."""
    return (wall - EPOCH - timedelta(seconds=offset)) // MICROSECOND


def _at_spacing(
    lookback: Timestamps, last: int, spacing: int, num_bars: int, zone: tzinfo | None
) -> Timestamps:
    """Constant spacing by instant, after ``last``, an instant of ``_instants``."""
    if last + spacing * num_bars > LAST_TIME.astype(np.int64):
        raise OverflowError
    if zone is None:
        wall = lookback.wall[-1] + np.arange(1, num_bars + 1) * np.timedelta64(spacing, "us")
        newest = None if lookback.offsets_s is None else np.full(num_bars, lookback.offsets_s[-1])
        return _written(lookback, wall, newest)
    locals_ = (to_datetime(last + ahead * spacing).replace(tzinfo=UTC).astimezone(zone) for ahead in count(1))
    if lookback.is_aware:
        times = list(islice(locals_, num_bars))
    else:
        times = list(islice(_ascending(locals_, lookback.wall[-1].item()), num_bars))
    wall = np.array([at.replace(tzinfo=None) for at in times], dtype="datetime64[us]")
    offsets_s = np.array([offset_s(at, zone) for at in times]) if lookback.is_aware else None
    return _written(lookback, wall, offsets_s)


def _ascending(times: Iterable[datetime], newest: datetime) -> Iterator[datetime]:
    """The times that are later on the wall clock than all before them."""
    for at in times:
        if at.replace(tzinfo=None) > newest:
            newest = at.replace(tzinfo=None)
            yield at


def _written(
    lookback: Timestamps, wall: NDArray[np.datetime64], offsets_s: NDArray[np.int64] | None
) -> Timestamps:
    if wall[-1] > LAST_TIME:
        raise OverflowError
    return Timestamps(write_like(lookback.texts[-1], wall, offsets_s), wall, offsets_s)
