"""Scores of forecasts of the close, one for each window, and the improvement of one forecast over another.

Arrays are float64: actual closes (W, H), points (W, H), quantiles (W, num_levels, H), lookbacks (W, T). All
scores but the coverage are in units of the price; divided by ``one_bar_change`` they compare across
instruments. No torch.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Outcome = Literal["better", "worse", "unclear"]

LEVELS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Levels of the scored quantiles; the outer two bound the 80 % interval."""

NUM_RESAMPLES: Final = 2000
MIN_GROUPS: Final = 6
"""Fewer groups all agree by chance in more than 5 % of cases: 2 · 0.5⁵ = 6 %, 2 · 0.5⁶ = 3 %."""


def mae(actual: Array, point: Array) -> Array:
    """Mean absolute error over the steps, (W,)."""
    error: Array = np.abs(actual - point).mean(axis=1)
    return error


def one_bar_change(closes: Array) -> Array:
    """The lookback's mean absolute change from bar to bar, (W,); NaN if the close never changes.

    It is the in-sample error of the last value, by which MASE divides: Hyndman and Koehler, Another look at
    measures of forecast accuracy, International Journal of Forecasting 22 (2006).
    """
    change = np.abs(np.diff(closes, axis=1)).mean(axis=1)
    scale: Array = np.where(change > 0, change, np.nan)
    return scale


def pinball(actual: Array, quantiles: Array, levels: Sequence[float] = LEVELS) -> Array:
    """Mean pinball (quantile) loss over levels and steps, (W,). It is not doubled, unlike in some texts.

    Koenker and Bassett, Regression quantiles, Econometrica 46 (1978). The mean over levels approaches half
    the CRPS: Gneiting and Raftery, Strictly proper scoring rules, JASA 102 (2007). Scaled by
    ``one_bar_change`` it is the loss of the M5 competition.
    """
    if quantiles.shape[1] != len(levels):
        raise ValueError(f"{quantiles.shape[1]} quantiles do not match {len(levels)} levels")
    level = np.asarray(levels)[:, None]  # (num_levels, 1)
    error = actual[:, None, :] - quantiles  # (W, num_levels, H)
    loss: Array = np.maximum(level * error, (level - 1) * error).mean(axis=(1, 2))
    return loss


def coverage(actual: Array, low: Array, high: Array) -> Array:
    """Share of the steps (W, H) that lie in their interval, bounds included, (W,)."""
    share: Array = ((low <= actual) & (actual <= high)).mean(axis=1)
    return share


class Improvement(NamedTuple):
    """The decrease of a mean loss, in per cent of the other loss, with its 95 % interval.

    ``low`` and ``high`` are NaN if there are too few windows. All are −inf if only the other loss is 0.
    """

    mean: float
    low: float
    high: float

    @property
    def outcome(self) -> Outcome:
        """Unclear if the interval contains 0, or if there is none."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "unclear"


def improvement(
    ours: Array,
    theirs: Array,
    *,
    groups: NDArray[np.int64] | None = None,
    seed: int = 0,
) -> Improvement:
    """The improvement of the mean of ``ours`` (W,) over that of ``theirs`` (W,), losses on the same windows.

    The interval is a percentile bootstrap over windows, which stay paired (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 13). Overlapping windows have similar losses; drawn
    separately, they would make the interval too narrow. So windows with the same number in ``groups`` (W,)
    are drawn together. With fewer than ``MIN_GROUPS`` groups there is no interval.

    Raises ValueError if there are no windows, or different numbers of them.
    """
    if not len(ours) or ours.shape != theirs.shape:
        raise ValueError(f"losses of {len(ours)} and {len(theirs)} windows cannot be compared")
    if groups is None:
        groups = np.arange(len(ours))
    of_window = np.unique(groups, return_inverse=True)[1]
    sums = np.stack([np.bincount(of_window, weights=losses) for losses in (ours, theirs)], axis=1)  # (G, 2)
    mean = float(_percent(sums.sum(axis=0)))
    if len(sums) < MIN_GROUPS:
        return Improvement(mean, np.nan, np.nan)
    rng = np.random.default_rng(seed)
    resampled = [sums[rng.integers(len(sums), size=len(sums))].sum(axis=0) for _ in range(NUM_RESAMPLES)]
    # "nearest" does not interpolate: a value may be infinite.
    low, high = np.quantile(_percent(np.stack(resampled)), (0.025, 0.975), method="nearest")
    return Improvement(mean, float(low), float(high))


def _percent(sums: Array) -> Array:
    """The improvement in per cent, from sums of our loss and theirs (..., 2); 0 if they are equal."""
    ours, theirs = sums[..., 0], sums[..., 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        percent = 100 * ((theirs - ours) / theirs)
    return np.where(ours == theirs, 0.0, percent)
