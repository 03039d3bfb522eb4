"""Intraday bars with breaks: which bars come next, as far as the lookback shows it.

There are two kinds of market. If bars follow each other across midnight, it trades around the clock.

- **Day sessions** (stock exchanges): a day's bar times, lunch break included, are those that at least half
  of the last ten trading days have, on the weekdays that trade. The lookback must show every time of day at
  least once: it must reach over one close and back to where it began. These bar times must reproduce the
  lookback itself, its newest day above all, within a tenth: sessions that have moved (an exchange's summer
  time seen in UTC) are refused. If the lookback contains no weekend, Saturday and Sunday are taken as closed,
  with a warning.
- **Around the clock** (currencies, futures): bars come at the times of day at which the last trading days had
  them. A time is left out if it lay in a closure of a day or longer in most of the last weeks. If the
  lookback is too short to show that, the stretch from Friday noon to the end of Sunday is refused.

Days vote because a day off, a half day, a holiday week or a few missing bars in the lookback would otherwise
appear in the forecast's timestamps. A simpler rule repeats last week's bars, but it repeats such days too. It
also needs a lookback of more than a week: 400 bars of one minute are less than two days.
"""

from bisect import bisect_left
from calendar import day_name
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from kronos_model.errors import TimestampError

FRIDAY, SATURDAY, SUNDAY = 4, 5, 6

MAX_DAYS_CLOSED: Final = 4
"""A longer run of days without bars (a holiday week, a suspension) does not count against a weekday."""
Days = TypeVar("Days", int, NDArray[np.int64])
DAY: Final = 86_400_000_000
WEEK: Final = 7 * DAY
MONDAY: Final = 4 * DAY
"""The first one since 1970-01-01, in µs."""
FRIDAY_NOON: Final = 4 * DAY + DAY // 2
"""µs since Monday."""
MAX_TRADING_DAYS: Final = 10
MAX_VOTES: Final = 4
MAX_HISTORY: Final = 10 * WEEK
"""Older bars are ignored: sessions change over time."""
MAX_BREAKS: Final = 1000
MAX_SILENCE: Final = 4 * DAY
"""The search for the next bar ends after this long without one."""
MIN_SHARE_OF_DAY: Final = 0.25
"""A lookback with a smaller share of a full day's bars does not show a day."""
MAX_MISMATCH: Final = 0.1
SHORTEST_BREAK: Final = DAY // 96
"""A quarter of an hour, as on futures exchanges. A shorter gap means missing bars."""


class CannotInfer(TimestampError, code="CANNOT_INFER_TIMESTAMPS"):
    """The lookback does not show how its timestamps continue."""

    def __init__(self, reason: str) -> None:
        text = f"the future timestamps cannot be inferred ({reason}): give them, or a longer lookback"
        super().__init__(text, field="future_timestamps")


@dataclass(frozen=True)
class Weekdays:
    """Which weekdays are open.

    Attributes:
        is_open: one entry a weekday, Monday first; None if the lookback does not show it.
        is_known: whether the lookback itself shows it, one entry a weekday.
        num_missing: days without bars among the open weekdays, longer closures apart.
    """

    is_open: tuple[bool | None, ...]
    is_known: tuple[bool, ...]
    num_missing: int

    @classmethod
    def from_days(cls, days: NDArray[np.int64]) -> "Weekdays":
        """From the days with bars, ascending.

        A weekday is open if it has bars at least as often as not. A Monday to Friday without bars just once
        may be a day off, so it counts as unknown. An unknown weekday is taken as open if both Saturday and
        Sunday trade, or if neither does and it is a Monday to Friday.
        """
        gaps = np.diff(days)
        short = np.flatnonzero((gaps > 1) & (gaps <= MAX_DAYS_CLOSED + 1))
        off = np.concatenate([days[:0], *(np.arange(days[i] + 1, days[i + 1]) for i in short)])
        traded = np.bincount(weekday_of(days), minlength=7).tolist()
        missed = np.bincount(weekday_of(off), minlength=7).tolist()
        trades = [bool(had) and had >= lacked for had, lacked in zip(traded, missed, strict=True)]
        num_weekend = trades[SATURDAY] + trades[SUNDAY]
        is_known = tuple(bool(traded[day] or missed[day] > (day < SATURDAY)) for day in range(7))
        unknown = [num_weekend == 2 or (day < SATURDAY and not num_weekend) or None for day in range(7)]
        is_open = tuple(trades[day] if is_known[day] else unknown[day] for day in range(7))
        num_missing = sum(lacked for lacked, opens in zip(missed, is_open, strict=True) if opens)
        return cls(is_open, is_known, num_missing)

    def with_weekend_closed(self) -> "Weekdays":
        """The same, with Saturday and Sunday closed unless one of them is open."""
        if self.is_open[SATURDAY] or self.is_open[SUNDAY]:
            return self
        return replace(self, is_open=(*self.is_open[:SATURDAY], False, False))

    def assumes_weekend_between(self, first: int, last: int) -> bool:
        """Whether one of the days after ``first``, up to ``last``, is an unknown Friday to Sunday."""
        weekdays = (weekday_of(day) for day in range(first + 1, last + 1))
        return any(weekday >= FRIDAY and not self.is_known[weekday] for weekday in weekdays)

    def after(self, day: int) -> Iterator[int]:
        """The open days after ``day``. Raises CannotInfer at a weekday that the lookback does not show."""
        if not any(self.is_open):
            raise CannotInfer("no weekday has bars more often than not")
        for later in count(day + 1):
            weekday = weekday_of(later)
            if self.is_open[weekday] is None:
                reason = f"the lookback does not show whether there are bars on a {day_name[weekday]}"
                raise CannotInfer(reason)
            if self.is_open[weekday]:
                yield later


def weekday_of(days: Days) -> Days:
    """Weekday, Monday 0, of days counted from 1970-01-01."""
    return (days + 3) % 7  # 1970-01-01 was a Thursday


def common_spacing(clock: NDArray[np.int64]) -> int:
    """The most frequent distance between neighbours; the smallest of several."""
    gaps = clock[1:] - clock[:-1]
    if len(gaps) and 2 * np.count_nonzero(gaps == (smallest := gaps.min())) > len(gaps):
        return int(smallest)  # the usual case, in a quarter of the time
    distances, counts = np.unique(gaps, return_counts=True)
    return int(distances[counts.argmax()])


def bridge_outages(
    clock: NDArray[np.int64],
    spacing: int,
    shortest_break: int = SHORTEST_BREAK,
    wall: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Bar times (µs), with occasionally missing bars filled in.

    A gap of less than a day is bridged if other days have a bar at each of the missing times. It is also
    bridged if it is shorter than any break, and no other day of the lookback could show whether it recurs.
    Times of day are those of ``wall``, if the clock is another one: breaks stay at their local time.
    """
    wall = clock if wall is None else wall
    gaps = clock[1:] - clock[:-1]
    wide = np.flatnonzero(gaps > spacing)
    if not len(wide):
        return clock
    gaps = gaps[wide]
    times_of_day = np.sort(wall % DAY)
    is_seen = _are_among(times_of_day, (wall[wide] + spacing) % DAY)
    is_likely = is_seen | (gaps - spacing < shortest_break)
    if not np.count_nonzero(is_likely):
        return clock
    is_candidate = (gaps < DAY) & (gaps % spacing == 0) & (gaps // spacing - 1 <= len(clock))
    if np.count_nonzero(is_candidate & ~is_seen) > MAX_BREAKS:
        return clock  # gaps are normal in this series; the limit also bounds the work
    added: list[NDArray[np.int64]] = []
    num_added = 0
    for index in wide[is_candidate & is_likely].tolist():
        missing = np.arange(clock[index] + spacing, clock[index + 1], spacing)
        are_seen = _are_among(times_of_day, (missing + wall[index] - clock[index]) % DAY)
        if are_seen.all() if are_seen[0] else _is_passed_once(clock, missing[0]):
            added.append(missing)
            num_added += len(missing)
        if num_added > len(clock):
            return clock  # as above
    return np.sort(np.concatenate([clock, *added])) if added else clock


def _are_among(ordered: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each value is one of those; np.isin takes several times as long."""
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[places] == values)


def _is_passed_once(clock: NDArray[np.int64], at: int) -> bool:
    """Whether no other day could show a bar at this time of day, closures apart."""
    days = np.unique(clock // DAY)
    nearby = np.unique(np.concatenate([days - 1, days, days + 1]))
    times = nearby * DAY + at % DAY
    times = times[(times > clock[0]) & (times < clock[-1]) & (times != at)]
    after = np.searchsorted(clock, times)
    return not np.any(clock[after] - clock[after - 1] < DAY)


def session_walls(wall: NDArray[np.int64]) -> tuple[Iterator[int], int, Weekdays | None]:
    """The wall-clock times after a lookback with breaks, their spacing, and the weekdays of day sessions.

    Args:
        wall: the lookback's wall-clock times, (T,), like all times here in µs since 1970.

    Raises CannotInfer, also while the times are read.
    """
    last = int(wall[-1])
    wall = np.unique(wall[wall > last - MAX_HISTORY])  # as clocks go back, an hour comes twice
    spacing = _spacing_within_day(wall)
    wall = bridge_outages(wall, spacing)
    if np.any((np.diff(wall) == spacing) & (np.diff(wall // DAY) > 0)):
        return _around_the_clock(wall, last, spacing), spacing, None
    weekdays = Weekdays.from_days(np.unique(wall // DAY))
    return _day_sessions(wall, last, spacing, weekdays.with_weekend_closed()), spacing, weekdays


def _spacing_within_day(wall: NDArray[np.int64]) -> int:
    gaps = np.diff(wall)[np.diff(wall // DAY) == 0]
    distances, counts = np.unique(gaps, return_counts=True)
    if counts.max(initial=0) * 2 < len(gaps) or not len(gaps):
        raise CannotInfer("the bars are spaced irregularly")
    return int(distances[counts.argmax()])


def _day_sessions(wall: NDArray[np.int64], last: int, spacing: int, weekdays: Weekdays) -> Iterator[int]:
    """The bar times of the open days, starting after the last bar."""
    times = _bar_times(wall, spacing).tolist()
    days = chain([last // DAY], weekdays.after(last // DAY))
    return (day * DAY + at for day in days for at in times if day * DAY + at > last)


def _bar_times(wall: NDArray[np.int64], spacing: int) -> NDArray[np.int64]:
    """The times of day (µs) at which bars come, each on at least half of the days that could show it."""
    days = np.unique(wall // DAY)
    if len(days) == 1 or (len(days) == 2 and wall[-1] % DAY + spacing < wall[0] % DAY):
        raise CannotInfer("the lookback shows a break but not a whole day")
    kept = wall[wall // DAY >= days[-MAX_TRADING_DAYS:][0]]
    days, rows = np.unique(kept // DAY, return_inverse=True)
    times, columns = np.unique(kept % DAY, return_inverse=True)
    has_bar = np.zeros((len(days), len(times)), dtype=bool)
    has_bar[rows, columns] = True
    could_show = np.ones_like(has_bar)  # the first day may begin late, and the last is not over
    could_show[0] = times >= kept[0] % DAY
    could_show[-1] &= times <= kept[-1] % DAY
    is_open = 2 * has_bar.sum(axis=0) >= could_show.sum(axis=0)
    mismatch = (has_bar != is_open) & could_show
    newest = mismatch[-1].sum() > max(1, MAX_MISMATCH * could_show[-1].sum())
    if mismatch.sum() > max(1, MAX_MISMATCH * len(kept)) or newest or not is_open[columns[-1]]:
        raise CannotInfer("the bars come at times of day that change")
    return np.asarray(times[is_open])


def _around_the_clock(wall: NDArray[np.int64], last: int, spacing: int) -> Iterator[int]:
    """The times, on the lookback's spacing, at which its history expects a bar."""
    if len(wall) < MIN_SHARE_OF_DAY * (DAY // spacing):
        raise CannotInfer("the lookback shows a break but not a whole day")
    newest = last
    steps = np.arange(last, last + DAY, spacing)
    times = np.unique(np.concatenate([wall, steps]) % DAY).tolist()
    history = _History(wall)
    for midnight in count(last - last % DAY, DAY):
        for at in times:
            if midnight + at > last and history.expects(midnight + at):
                newest = midnight + at
                yield newest
        if midnight - newest > MAX_SILENCE:
            raise CannotInfer("the bars come at times of day that change")


class _History:
    """The bars of a lookback, looked up whole weeks and whole days before a time."""

    def __init__(self, wall: NDArray[np.int64]) -> None:
        self._first, self._last = int(wall[0]), int(wall[-1])
        self._bars = set(wall.tolist())
        self._days = set((wall // DAY).tolist())
        gaps = np.flatnonzero(np.diff(wall) >= DAY)  # weekends, days off
        self._closures = [(int(wall[gap]), int(wall[gap + 1])) for gap in gaps]

    def expects(self, at: int) -> bool:
        """Whether a bar comes at ``at``. Raises CannotInfer if the lookback does not show it."""
        closed = [
            self._is_closed(then)
            for then in self._before(at, WEEK)
            if then // DAY in self._days or weekday_of(then // DAY) >= SATURDAY  # else it is a day off
        ]
        if 2 * sum(closed[:MAX_VOTES]) > len(closed[:MAX_VOTES]):
            return False
        if not closed and (at - MONDAY) % WEEK >= FRIDAY_NOON:
            raise CannotInfer("the lookback has breaks and is too short to show the weekend")
        votes = [then in self._bars for then in self._before(at, DAY) if not self._is_closed(then)]
        if not votes:
            raise CannotInfer("the lookback shows a break but not a whole day")
        return 2 * sum(votes[:MAX_VOTES]) >= len(votes[:MAX_VOTES])

    def _before(self, at: int, period: int) -> range:
        """The same time whole periods before ``at``, as far as the lookback reaches, newest first."""
        newest = at - -((self._last - at) // period) * period
        return range(newest, self._first - 1, -period)

    def _is_closed(self, at: int) -> bool:
        """Whether ``at`` lies strictly within a stretch of a day or longer without bars."""
        index = bisect_left(self._closures, (at,)) - 1
        return index >= 0 and at < self._closures[index][1]
