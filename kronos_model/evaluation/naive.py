"""Naive forecasts of the close, which a model must beat. No torch.

Both points are textbook forecasts (Hyndman and Athanasopoulos, Forecasting: Principles and Practice, 3rd
edition, section 5.2). Their quantiles are the point plus the quantiles of the lookback's own changes over as
many bars. This assumes no distribution of the changes, and no law of their growth with the horizon.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MIN_CHANGES: Final = 10
"""The fewest changes of the close to take quantiles from."""


@dataclass(frozen=True, eq=False)
class CloseForecast:
    """Forecasts of the close for W windows: a point (W, H), and quantiles (W, num_levels, H)."""

    point: Array
    quantiles: Array


def last_value(closes: Array, horizon: int, levels: Sequence[float]) -> CloseForecast:
    """The last close at every step, from lookbacks (W, T)."""
    point = np.repeat(closes[:, -1:], horizon, axis=1)  # (W, H)
    return CloseForecast(point, point[:, None, :] + _quantiles_of_changes(closes, horizon, levels))


def seasonal(closes: Array, horizon: int, levels: Sequence[float], season: int) -> CloseForecast:
    """The close one season ago, or as many seasons as the step needs, from lookbacks (W, T).

    The point of step h is ``close[T − season + (h − 1) mod season]``. Its quantiles have the same distances
    from it as those of ``last_value`` from the last close. Raises ValueError with ``why_not_seasonal``.
    """
    num_bars = closes.shape[1]
    if (reason := why_not_seasonal(num_bars, season)) is not None:
        raise ValueError(reason)
    point = closes[:, num_bars - season + np.arange(horizon) % season]  # (W, H)
    return CloseForecast(point, point[:, None, :] + _quantiles_of_changes(closes, horizon, levels))


def why_not_seasonal(lookback: int, season: int | None) -> str | None:
    """The reason why a lookback of that length has no seasonal forecast; None if it has one."""
    if season is None:
        return "the candles show no whole day of two or more bars, so no season"
    if season < 2:
        return "a season of one bar is the last value"
    needed = season + MIN_CHANGES
    if lookback < needed:
        return f"a season of {season} bars needs a lookback of at least {needed} bars, not {lookback}"
    return None


def infer_season(*walls: NDArray[np.datetime64]) -> int | None:
    """The most frequent number of bars a day in the wall-clock times of some instruments, each (N,).

    Each instrument's first and last day are not counted, because they may be incomplete. Of equally frequent
    numbers it is the largest: days may lack bars, but have none too many. None if no whole day is left, or if
    days have one bar.
    """
    counts = [np.unique(wall.astype("datetime64[D]"), return_counts=True)[1][1:-1] for wall in walls]
    numbers, frequencies = np.unique(np.concatenate([*counts, np.empty(0, np.int64)]), return_counts=True)
    if not len(numbers):
        return None
    season = int(numbers[frequencies == frequencies.max()][-1])
    return season if season > 1 else None


def _quantiles_of_changes(closes: Array, horizon: int, levels: Sequence[float]) -> Array:
    """Quantiles of each lookback's changes over 1 to H bars, (W, num_levels, H).

    Step h takes all changes ``close[t + h] − close[t]``, and interpolates linearly. If the lookback has fewer
    than ``MIN_CHANGES`` of them, the step takes the changes over the most bars of which there are enough,
    times ``sqrt(h / those bars)``, as a random walk grows. The shortest lookbacks give changes over one bar.

    Raises ValueError if the lookback has fewer than 2 bars.
    """
    num_bars = closes.shape[1]
    if num_bars < 2:
        raise ValueError(f"a change needs a lookback of at least 2 bars, not {num_bars}")
    max_lag = max(1, num_bars - MIN_CHANGES)
    quantiles = np.empty((len(closes), len(levels), horizon))
    for h in range(1, horizon + 1):
        lag = min(h, max_lag)
        changes = closes[:, lag:] - closes[:, :-lag]
        quantiles[..., h - 1] = np.quantile(changes, levels, axis=1).T * np.sqrt(h / lag)
    return quantiles
