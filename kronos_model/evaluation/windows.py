"""Windows of bars: their positions in the instruments, their bars, and when their forecasts begin."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import CLOSE, FloatArray, Instrument

Array = NDArray[np.float64]
MIN_GROUPS: Final = 6
"""Fewer groups give no interval: all agree by chance in more than 5 % of cases (2 · 0.5⁵ = 6 %)."""
MIN_WINDOWS: Final = 30
"""Fewer seldom show a difference."""


@dataclass(frozen=True, eq=False)
class Windows:
    """W windows, by instrument and start.

    ``instrument_index`` (W,) int32 is the instrument's index in the list of instruments, ``start`` (W,) int64
    the window's first bar in its instrument.
    """

    instrument_index: NDArray[np.int32]
    start: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)


def spread(windows: Windows, num_windows: int) -> Windows:
    """At most ``num_windows`` of the windows, evenly spread, always the same ones."""
    if num_windows >= len(windows):
        return windows
    chosen = (2 * np.arange(num_windows) + 1) * len(windows) // (2 * max(1, num_windows))
    return Windows(windows.instrument_index[chosen], windows.start[chosen])


@dataclass(frozen=True, eq=False)
class WindowArrays:
    """W windows of L = lookback + H bars.

    Attributes:
        bars: (W, L, 6) float32, columns as ``COLUMNS``.
        wall: wall-clock times, (W, L).
    """

    bars: FloatArray
    wall: NDArray[np.datetime64]
    lookback: int

    def __len__(self) -> int:
        return len(self.bars)

    @property
    def past_closes(self) -> NDArray[np.float64]:
        """The lookbacks' closes, (W, lookback)."""
        return self.bars[:, : self.lookback, CLOSE].astype(np.float64)

    @property
    def future_closes(self) -> NDArray[np.float64]:
        """The closes after the lookbacks, (W, H)."""
        return self.bars[:, self.lookback :, CLOSE].astype(np.float64)


def one_bar_change(closes: Array) -> Array:
    """The lookback's mean absolute change from bar to bar, (W,); NaN if the close never changes.

    It is the in-sample error of the last value, by which MASE divides: Hyndman and Koehler, Another look at
    measures of forecast accuracy, International Journal of Forecasting 22 (2006).
    """
    change = np.abs(np.diff(closes, axis=1)).mean(axis=1)
    scale: Array = np.where(change > 0, change, np.nan)
    return scale


def window_arrays(
    instruments: Sequence[Instrument], windows: Windows, lookback: int, pred_len: int
) -> WindowArrays:
    """The bars of each window."""
    rows = windows.start[:, None] + np.arange(lookback + pred_len)  # (W, L)
    num_windows = len(rows)
    bars = np.empty((*rows.shape, 6), dtype=np.float32)
    wall = np.empty(rows.shape, dtype="datetime64[s]")
    for window in range(num_windows):
        instrument = instruments[int(windows.instrument_index[window])]
        bars[window], wall[window] = instrument.bars[rows[window]], instrument.wall[rows[window]]
    return WindowArrays(bars, wall, lookback)


@dataclass(frozen=True, eq=False)
class WindowTimes:
    """The times of W windows.

    Neighbouring groups still share bars, so intervals are a little too narrow if futures overlap much: with
    random walks whose futures overlapped fourfold, an interval for two equally good forecasts missed 0 in 11
    of 100 cases instead of 5. Without groups it missed 0 in 26.

    Attributes:
        begins: when each window's forecast begins, (W,).
        groups: a number for each window, (W,); those whose forecasts begin within one horizon of each other,
            of whichever instrument, share it.
        lags: the usual number of earlier times whose forecasts go on when another begins.
    """

    begins: NDArray[np.datetime64]
    groups: NDArray[np.int64]
    lags: int

    @property
    def num_groups(self) -> int:
        """Windows that count singly."""
        return len(np.unique(self.groups))

    def select(self, windows: Sequence[int]) -> "WindowTimes":
        """The times of some of the windows."""
        return WindowTimes(self.begins[list(windows)], self.groups[list(windows)], self.lags)


def window_times(
    instruments: Sequence[Instrument], windows: Windows, lookback: int, horizon: int
) -> WindowTimes:
    """The times of one or more windows.

    The horizon of the groups is the usual time that ``horizon`` bars take, nights and weekends included, in
    the instrument in which it is longest.
    """

    def instants(bars: NDArray[np.int64]) -> NDArray[np.datetime64]:
        indices = windows.instrument_index
        return np.array([instruments[index].instants[bar] for index, bar in zip(indices, bars, strict=True)])

    begins = instants(windows.start + lookback)
    used = [instruments[index].instants for index in np.unique(windows.instrument_index)]
    span = max(np.median(each[horizon:] - each[:-horizon]) for each in used).astype("timedelta64[s]")
    groups = np.unique((begins - begins.min()).astype("timedelta64[s]") // span, return_inverse=True)[1]
    ends = instants(windows.start + lookback + horizon - 1)
    times, index = np.unique(begins, return_inverse=True)
    latest = np.full(len(times), ends.min())
    np.maximum.at(latest, index, ends)
    latest = np.maximum.accumulate(latest)
    lags = int(np.ceil(np.median(np.arange(len(times)) - np.searchsorted(latest, times))))
    return WindowTimes(begins, groups, lags)
