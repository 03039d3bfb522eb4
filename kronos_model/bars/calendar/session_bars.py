"""The times that an exchange's bars have, found without making all of them: bars may be very close."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.calendar.exchange import Exchange

Times = NDArray[np.int64]


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
