"""The timestamps of future bars, inferred from the lookback's own spacing.

The first rule that fits applies: months, weeks or days apart (at the same wall-clock time), constant spacing
within the day, sessions. One missing bar, or a day off, does not hide a rule. Future days off are not
predicted. If no rule fits, or the lookback does not show enough for the request, an error is raised.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count
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
from kronos_model.bars.timestamps import Timestamps, exists_in, offset_s, write_like

SECOND: Final = DAY // 86_400
LAST_TIME: Final = int(np.datetime64("9999-12-31T23:59:59.999999").astype(np.int64))
HOUR: Final = DAY // 24
MID_WEEKEND: Final = (FRIDAY_NOON + DAY, FRIDAY_NOON + 2 * DAY)
"""A market that closes for the weekend is closed throughout this time."""
MIN_BARS: Final = 3
"""Fewer bars show no repeating spacing."""

MAX_EXCEPTIONS: Final = 0.1
"""Share of a lookback's bars that may break the rule: days off, a missing bar."""

MAX_DAYS_OFF: Final = 0.25
"""Share of a daily lookback's trading days that may be missing: holidays cluster."""


@dataclass(frozen=True)
class Inferred:
    """Future timestamps, written like the lookback's.

    Attributes:
        rule: how they were found, in words.
        warning: set if they rest on an assumption that may be wrong.
    """

    timestamps: Timestamps
    rule: str
    warning: str | None = None


def infer_future(lookback: Timestamps, num_bars: int, zone: tzinfo | None = None) -> Inferred:
    """The ``num_bars`` (at least 1) timestamps after the lookback's last.

    They keep its form. Offsets are the last bar's; with ``zone``, that zone's at the time. Naive timestamps
    with a zone follow that zone's clock.

    Raises TimestampError (CANNOT_INFER_TIMESTAMPS) if the lookback does not show how it continues.
    """
    if len(lookback) < MIN_BARS:
        raise CannotInfer(f"{len(lookback)} bars are too few: at least {MIN_BARS} are needed")
    try:
        return _continue(lookback, num_bars, zone)
    except OverflowError:
        raise CannotInfer("they would lie beyond the year 9999") from None


def _continue(lookback: Timestamps, num_bars: int, zone: tzinfo | None) -> Inferred:
    wall = lookback.wall.astype(np.int64)
    days = wall // DAY
    is_daily = bool((days[1:] > days[:-1]).all())
    if is_daily and (clock := common_clock(wall)) is not None:
        for find, name in RULES:
            future_days = find(days, num_bars)
            if future_days is not None:
                if future_days[-1] > LAST_TIME // DAY:
                    raise OverflowError
                return Inferred(at_walls(lookback, future_days * DAY + clock, zone), name)
    instants = instants_of(lookback, zone)
    spacing = _constant_spacing(instants)
    if spacing is None and np.ptp(wall - instants):  # offsets that change
        spacing = _constant_spacing(wall)
    if spacing is not None:
        future = at_spacing(lookback, int(instants[-1]), spacing, num_bars, zone)
        return Inferred(future, "the lookback's spacing, without breaks", _warn_of_breaks(lookback, future))
    if is_daily:
        raise CannotInfer("the bars are days apart, but not evenly")
    times, warning = session_walls(wall, num_bars, lambda at: exists_in(zone, to_datetime(at)))
    rule = "the lookback's times of day and weekdays; holidays are not known"
    return Inferred(at_walls(lookback, times, zone), rule, warning)


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


def common_clock(wall: NDArray[np.int64]) -> int | None:
    """The time of day that daily bars share; the newest bar's if another zone's summer time shifts it."""
    clocks = wall % DAY
    distinct, counts = np.unique(clocks, return_counts=True)
    common = distinct[counts.argmax()]
    if _nearly_all(clocks == common):
        return int(common)
    return int(clocks[-1]) if len(distinct) == 2 and np.ptp(distinct) == HOUR else None


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


def at_walls(lookback: Timestamps, times: NDArray[np.int64], zone: tzinfo | None) -> Timestamps:
    """At these wall-clock times (µs since 1970), with the zone's offsets or the lookback's last one."""
    if lookback.offsets_s is None or zone is None:
        return _written(lookback, times)
    newest = int(lookback.clock[-1])
    offsets_s = []
    for at in times.tolist():
        wall = to_datetime(at)
        offset = offset_s(wall, zone)
        if at - offset * SECOND <= newest:  # the second of two hours as clocks go back
            offset = offset_s(wall.replace(fold=1), zone)
        newest = at - offset * SECOND
        offsets_s.append(offset)
    return _written(lookback, times, offsets_s)


def at_spacing(
    lookback: Timestamps, last: int, spacing: int, num_bars: int, zone: tzinfo | None
) -> Timestamps:
    """Constant spacing by instant, without a break, after ``last``, an instant of ``instants_of``.

    Hours that daylight saving skips are skipped; an hour that repeats appears twice if bars have offsets.
    """
    if last + spacing * num_bars > LAST_TIME:
        raise OverflowError
    if zone is None:
        newest = int(lookback.wall[-1].astype(np.int64))
        return _written(lookback, newest + np.arange(1, num_bars + 1) * spacing)
    walls, offsets_s = [lookback.wall[-1].item()], []
    for at in count(last + spacing, spacing):
        local = to_datetime(at).replace(tzinfo=UTC).astimezone(zone)
        wall = local.replace(tzinfo=None)
        if lookback.is_aware or wall > walls[-1]:
            walls.append(wall)
            offsets_s.append(offset_s(local, zone))
        if len(offsets_s) == num_bars:
            break
    times = np.array(walls[1:], dtype="datetime64[us]").astype(np.int64)
    return _written(lookback, times, offsets_s)


def at_instants(lookback: Timestamps, instants: NDArray[np.int64], zone: tzinfo) -> Timestamps:
    """At these instants (µs since 1970 in UTC), on the zone's clock."""
    local = [to_datetime(at).replace(tzinfo=UTC).astimezone(zone) for at in instants.tolist()]
    wall = np.array([at.replace(tzinfo=None) for at in local], dtype="datetime64[us]").astype(np.int64)
    return _written(lookback, wall, [offset_s(at.replace(tzinfo=None), zone) for at in local])


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
