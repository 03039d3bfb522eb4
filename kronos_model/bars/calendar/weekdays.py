"""The weekdays on which an instrument trades, inferred from the days on which it has bars.

Days are counted from 1970-01-01.
"""

from calendar import day_name
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from kronos_model.errors import TimestampError

FRIDAY, SATURDAY, SUNDAY = 4, 5, 6

MAX_DAYS_CLOSED: Final = 4
"""A longer run of days without bars (a holiday week, a suspension) does not count against a weekday."""


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
    def of(cls, days: NDArray[np.int64]) -> "Weekdays":
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


Days = TypeVar("Days", int, NDArray[np.int64])


def weekday_of(days: Days) -> Days:
    """Weekday, Monday 0."""
    return (days + 3) % 7  # 1970-01-01 was a Thursday
