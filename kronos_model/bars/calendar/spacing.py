"""The timestamps of future bars, inferred from the lookback's own spacing.

The first rule that fits applies: months, weeks or days apart (at the same wall-clock time), constant spacing
within the day, sessions. One missing bar, or a day off, does not hide a rule. Future days off are not
predicted. If no rule fits, or the lookback does not show enough for the request, an error is raised.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import chain, count, islice
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronos_model.bars.calendar.sessions import (
    DAY,
    FRIDAY_NOON,
    MONDAY,
    SHORTEST_BREAK,
    WEEK,
    CannotInfer,
    Weekdays,
    bridge_outages,
    common_spacing,
    session_walls,
    weekday_of,
)
from kronos_model.bars.timestamps import NUM_SHARED_TIMES, Timestamps, offset_s, write_like

Rule = Callable[[NDArray[np.int64], int], NDArray[np.int64] | None]
SECOND: Final = DAY // 86_400
LAST_TIME: Final = int(np.datetime64("9999-12-31T23:59:59.999999").astype(np.int64))
FIRST_S, LAST_S = (int(np.datetime64(day, "s").astype(np.int64)) for day in ("0001-01-02", "9999-12-31"))
HOUR: Final = DAY // 24
MID_WEEKEND: Final = (FRIDAY_NOON + DAY, FRIDAY_NOON + 2 * DAY)
"""A market that closes for the weekend is closed throughout this time."""
MIN_BARS: Final = 3
"""Fewer bars show no repeating spacing."""

MAX_EXCEPTIONS: Final = 0.1
"""Share of a lookback's bars that may break the rule: days off, a missing bar."""

MAX_DAYS_OFF: Final = 0.25
"""Share of a daily lookback's trading days that may be missing: holidays cluster."""

MAX_REPEATED: Final = 3 * 3600
"""Bars of a naive lookback that may be left out, as clocks go back: three hours of one-second bars."""
WEEKEND_ASSUMED: Final = (
    "The lookback does not reach over a weekend: Monday to Friday are taken as trading days, Saturday "
    "and Sunday as closed. If that is wrong, give the future times or a longer lookback."
)


@dataclass(frozen=True)
class Inferred:
    """Future timestamps, written like the lookback's.

    Attributes:
        rule: how they were found, in words.
        warning: set if they rest on an assumption that may be wrong.
        is_on_clock: whether their offsets are right without a zone, and not only the last bar's.
    """

    timestamps: Timestamps
    rule: str
    warning: str | None = None
    is_on_clock: bool = False


@contextmanager
def before_year_10000() -> Iterator[None]:
    """Raise CannotInfer instead of OverflowError."""
    try:
        yield
    except OverflowError:
        raise CannotInfer("they would lie beyond the year 9999") from None


@lru_cache(maxsize=NUM_SHARED_TIMES)
@before_year_10000()
def infer_future(lookback: Timestamps, num_bars: int, zone: tzinfo | None = None) -> Inferred:
    """The ``num_bars`` (at least 1) timestamps after the lookback's last.

    They keep its form. Offsets are the last bar's; with ``zone``, that zone's at the time. Naive timestamps
    with a zone follow that zone's clock.

    Raises TimestampError (CANNOT_INFER_TIMESTAMPS) if the lookback does not show how it continues.
    """
    wall, days, is_daily = wall_and_days(lookback)
    if is_daily and (clock := common_clock(wall)) is not None:
        days = without_skipped(days, clock, lookback, zone)
        for find, name in RULES:
            ahead = find(days, num_bars)
            if ahead is not None:
                if ahead[-1] > LAST_TIME // DAY:
                    raise OverflowError
                each = chain(ahead.tolist(), _one_more(find, days, num_bars))
                return Inferred(at_walls(lookback, (at * DAY + clock for at in each), num_bars, zone), name)
    instants = instants_of(lookback, zone)
    spacing = _constant_spacing(instants, wall)
    if spacing is None and np.ptp(wall - instants):  # offsets that change
        spacing = _constant_spacing(wall, wall)
    if spacing is not None:
        future = at_spacing(lookback, int(instants[-1]), spacing, num_bars, zone)
        return Inferred(future, "the lookback's spacing, without breaks", _warn_of_breaks(lookback, future))
    if is_daily:
        raise CannotInfer("the bars are days apart, but not evenly")
    walls, spacing, weekdays = session_walls(wall)
    future = at_walls(lookback, walls, num_bars, zone, spacing)
    rule = "the lookback's times of day and weekdays; holidays are not known"
    newest = int(future.wall[-1].astype(np.int64)) // DAY
    is_assumed = weekdays is not None and weekdays.assumes_weekend_between(int(days[-1]), newest)
    return Inferred(future, rule, WEEKEND_ASSUMED if is_assumed else None)


def wall_and_days(lookback: Timestamps) -> tuple[NDArray[np.int64], NDArray[np.int64], bool]:
    """Wall-clock times (µs), their days, and whether each bar has a day of its own.

    Raises TimestampError if there are too few bars.
    """
    if len(lookback) < MIN_BARS:
        raise CannotInfer(f"{len(lookback)} bars are too few: at least {MIN_BARS} are needed")
    wall = lookback.wall.astype(np.int64)
    days = wall // DAY
    return wall, days, bool((days[1:] > days[:-1]).all())


def _by_month(days: NDArray[np.int64], num_bars: int) -> NDArray[np.int64] | None:
    """Bars whole months apart, on a day of the month, its last day, or its first or last weekday."""
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    step = _common_step(months.astype(np.int64))
    if step is None:
        return None
    day_of_month = np.max(dates - months.astype("datetime64[D]"))
    ahead = months[-1] + step * np.arange(1, num_bars + 1)
    for choose in (
        lambda first, last: np.minimum(first + day_of_month, last),
        lambda first, last: np.busday_offset(last, 0, roll="backward"),
        lambda first, last: np.busday_offset(first, 0, roll="forward"),
    ):
        if _nearly_all(choose(*_ends(months)) == dates):
            return np.asarray(choose(*_ends(ahead)), dtype=np.int64)
    return None


def _ends(months: NDArray[np.datetime64]) -> tuple[NDArray[np.datetime64], NDArray[np.datetime64]]:
    """First and last days of months."""
    return months.astype("datetime64[D]"), (months + 1).astype("datetime64[D]") - 1


def _by_week(days: NDArray[np.int64], num_bars: int) -> NDArray[np.int64] | None:
    """Bars a whole number of weeks apart. A bar that a holiday moved within its week does not matter."""
    weekdays = weekday_of(days)
    step = _common_step((days - weekdays) // 7)
    weekday = int(np.bincount(weekdays).argmax())
    if step is None or not _nearly_all(weekdays == weekday):
        return None
    return np.asarray(days[-1] - weekdays[-1] + weekday + 7 * step * np.arange(1, num_bars + 1))


def _by_day(days: NDArray[np.int64], num_bars: int) -> NDArray[np.int64] | None:
    """Bars a constant number of days apart, or on the weekdays that the lookback trades on.

    A lookback without a weekend does not show whether Saturdays trade.
    """
    step = common_spacing(days)
    if step > 1 and np.all(np.diff(days) == step):
        return np.asarray(days[-1] + step * np.arange(1, num_bars + 1))
    weekdays = Weekdays.from_days(days)
    if weekdays.num_missing > MAX_DAYS_OFF * len(days) or step > 3:
        return None
    return np.fromiter(weekdays.after(int(days[-1])), np.int64, num_bars)


def _one_more(find: Rule, days: NDArray[np.int64], num_bars: int) -> Iterator[int]:
    """The day after the next ``num_bars``, for a zone that skips one of these."""
    ahead = find(days, num_bars + 1)
    assert ahead is not None, "the rule fits"
    yield int(ahead[-1])


def common_clock(wall: NDArray[np.int64]) -> int | None:
    """The time of day that daily bars share; the newest bar's if another zone's summer time shifts it."""
    clocks = wall % DAY
    distinct, counts = np.unique(clocks, return_counts=True)
    common = distinct[counts.argmax()]
    if _nearly_all(clocks == common):
        return int(common)
    return int(clocks[-1]) if len(distinct) == 2 and np.ptp(distinct) == HOUR else None


def without_skipped(
    days: NDArray[np.int64], clock: int, lookback: Timestamps, zone: tzinfo | None
) -> NDArray[np.int64]:
    """The days of daily bars; the last one is the day before if a change of clocks moved its bar."""
    if zone is not None and days[-1] > days[-2] + 1:
        skipped = _instants_at(int(days[-1] - 1) * DAY + clock, zone)
        if skipped is not None and skipped[0] == instants_of(lookback[-1:], zone)[-1]:
            return np.append(days[:-1], days[-1] - 1)
    return days


def _common_step(values: NDArray[np.int64]) -> int | None:
    """The distance between neighbours, if nearly all have it and the others a multiple of it."""
    steps = np.diff(values)
    step = common_spacing(values)
    if step < 1 or np.any(steps < 1) or np.any(steps % step) or not _nearly_all(steps == step):
        return None
    return step


def _constant_spacing(clock: NDArray[np.int64], wall: NDArray[np.int64]) -> int | None:
    spacing = common_spacing(clock)
    bridged = bridge_outages(clock, spacing, max(SHORTEST_BREAK, 2 * spacing), wall)  # at least a single bar
    return spacing if (bridged[1:] - bridged[:-1] == spacing).all() else None


def _nearly_all(fits: ArrayLike) -> bool:
    flags = np.asarray(fits)
    exceptions = len(flags) - np.count_nonzero(flags)
    return bool(exceptions <= max(MAX_EXCEPTIONS * len(flags), len(flags) >= 5))


def _warn_of_breaks(lookback: Timestamps, future: Timestamps) -> str | None:
    """A warning if the lookback is too short to show a break."""
    shown, ahead = ((stamps.wall.astype(np.int64) - MONDAY) % WEEK for stamps in (lookback, future))
    if lookback.clock[-1] - lookback.clock[0] < DAY:
        unseen = "night"
    elif (ahead >= FRIDAY_NOON).any() and not ((shown >= MID_WEEKEND[0]) & (shown < MID_WEEKEND[1])).any():
        unseen = "weekend"
    else:
        return None
    return (
        f"The lookback shows no break, but it does not reach over a {unseen} either: its spacing continues "
        "without one. If the market closes, give the future times or a longer lookback."
    )


RULES: Final = (
    (_by_month, "the lookback's day of the month"),
    (_by_week, "the lookback's day of the week"),
    (_by_day, "the lookback's weekdays; holidays are not known"),
)


def instants_of(lookback: Timestamps, zone: tzinfo | None) -> NDArray[np.int64]:
    """µs since 1970 in UTC; of the wall clock if there are neither offsets nor a zone."""
    if zone is None or lookback.is_aware:
        return lookback.clock
    times: list[datetime] = lookback.wall.tolist()
    offsets_us = np.array([offset_s(at, zone) for at in times], dtype=np.int64) * SECOND
    return np.asarray(lookback.wall.astype(np.int64) - offsets_us)


def at_walls(
    lookback: Timestamps, walls: Iterable[int], num_bars: int, zone: tzinfo | None, spacing: int = 0
) -> Timestamps:
    """At the first ``num_bars`` of these wall-clock times (µs since 1970), ascending.

    Without a zone they have the lookback's last offset. On a zone's clock, a time that a day skips becomes
    the first instant after it. Bars ``spacing`` apart are a session: from its first local time to its last
    one they follow each other in real time, whatever the clock does.
    """
    if zone is None:
        return _written(lookback, np.fromiter(walls, np.int64, num_bars))
    return at_instants(lookback, _in_real_time(lookback, walls, zone, spacing), num_bars, zone)


def _in_real_time(lookback: Timestamps, walls: Iterable[int], zone: tzinfo, spacing: int) -> Iterator[int]:
    before, newest = int(lookback.wall[-1].astype(np.int64)), int(instants_of(lookback[-1:], zone)[-1])
    for wall in walls:
        is_next, before = wall - before == spacing, wall
        if (found := _instants_at(wall, zone)) is None:
            continue
        opening = [at for at in found if at > newest][:1]
        for at in range(newest + spacing, found[1] + 1, spacing) if is_next else opening:
            newest = at
            yield at


def _instants_at(wall: int, zone: tzinfo) -> tuple[int, int] | None:
    """The first and the last instant of a wall-clock time, in µs since 1970. They differ as clocks go back.

    For a time that the clock skips, both are the first instant after it. None if it skips the whole day, as
    Samoa's did when the country crossed the date line.
    """
    time = to_datetime(wall)
    early, late = offset_s(time, zone), offset_s(time.replace(fold=1), zone)
    if early >= late:
        return wall - early * SECOND, wall - late * SECOND
    if (late - early) * SECOND >= DAY:
        return None
    # In such a gap, and only there, the offset before the change is the smaller one.
    skipped = range(wall // SECOND - late, wall // SECOND - early)
    change = skipped.start + bisect_left(skipped, True, key=lambda at: offset_at(at, zone) != early)
    return change * SECOND, change * SECOND


def offset_at(instant_s: int, zone: tzinfo) -> int:
    """The zone's seconds east of UTC at an instant."""
    known = min(max(instant_s, FIRST_S), LAST_S)  # a day within those of Python's dates
    offset = datetime.fromtimestamp(known, zone).utcoffset()
    assert offset is not None, "a zone has an offset for every time"
    return int(offset.total_seconds())


def at_spacing(
    lookback: Timestamps, last: int, spacing: int, num_bars: int, zone: tzinfo | None
) -> Timestamps:
    """Constant spacing by instant, without a break, after ``last``, an instant of ``instants_of``."""
    if last + spacing * num_bars > LAST_TIME:
        raise OverflowError
    if zone is None:
        newest = int(lookback.wall[-1].astype(np.int64))
        return _written(lookback, newest + np.arange(1, num_bars + 1) * spacing)
    return at_instants(lookback, count(last + spacing, spacing), num_bars, zone)


def at_instants(lookback: Timestamps, instants: Iterable[int], num_bars: int, zone: tzinfo) -> Timestamps:
    """At the first ``num_bars`` of these instants (µs since 1970 in UTC), ascending, on the zone's clock.

    An hour that repeats appears twice if bars have offsets, else once.
    """
    walls, offsets_s = [int(lookback.wall[-1].astype(np.int64))], list[int]()
    for instant in islice(instants, num_bars + MAX_REPEATED):
        offset = offset_at(instant // SECOND, zone)
        wall = instant + offset * SECOND
        if lookback.is_aware or wall > walls[-1]:
            walls.append(wall)
            offsets_s.append(offset)
            if len(offsets_s) == num_bars:
                return _written(lookback, np.array(walls[1:]), offsets_s)
    raise CannotInfer("an hour repeats as clocks go back, and the times have no offsets")


def _written(
    lookback: Timestamps, times: NDArray[np.int64], offsets_s: Sequence[int] | None = None
) -> Timestamps:
    """Like the lookback's: its last offset, if it has offsets and none are given."""
    if times[-1] > LAST_TIME:
        raise OverflowError
    wall = times.astype("datetime64[us]")
    offsets = None
    if lookback.offsets_s is not None:
        offsets = np.full(len(wall), lookback.offsets_s[-1] if offsets_s is None else offsets_s)
    return Timestamps(write_like(lookback.texts[-1], wall, offsets), wall, offsets)


def to_datetime(at: int) -> datetime:
    """A naive datetime from µs since 1970."""
    return datetime(1970, 1, 1) + timedelta(microseconds=at)
