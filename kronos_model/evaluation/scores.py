"""How good forecasts of the close are, a number for each window, and whether one forecast beats another.

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
"""Of the quantiles that are scored; the outer two bound the 80 % interval."""

NUM_RESAMPLES: Final = 2000
MIN_GROUPS: Final = 6
"""With fewer, all agree by chance in more than 5 % of cases: 2 · 0.5⁵ = 6 %, 2 · 0.5⁶ = 3 %."""


def mae(actual: Array, point: Array) -> Array:
    """Mean absolute error over the steps, (W,)."""
    error: Array = np.abs(actual - point).mean(axis=1)
    return error


def one_bar_change(closes: Array) -> Array:
    """The lookback's mean absolute change from bar to bar, (W,); NaN where the close never changes.

    It is the in-sample error of the last value, by which MASE divides: Hyndman and Koehler, Another look at
    measures of forecast accuracy, International Journal of Forecasting 22 (2006). It is undefined where that
    error is 0.
    """
    change = np.abs(np.diff(closes, axis=1)).mean(axis=1)
    scale: Array = np.where(change > 0, change, np.nan)
    return scale


def mase(actual: Array, point: Array, closes: Array) -> Array:
    """Mean absolute scaled error, (W,); NaN where ``one_bar_change`` is."""
    return mae(actual, point) / one_bar_change(closes)


def pinball(actual: Array, quantiles: Array, levels: Sequence[float] = LEVELS) -> Array:
    """Mean pinball (quantile) loss over levels and steps, (W,); not doubled, as some have it.

    Koenker and Bassett, Regression quantiles, Econometrica 46 (1978). Averaged over levels it approaches
    half the CRPS: Gneiting and Raftery, Strictly proper scoring rules, JASA 102 (2007). Scaled by
    ``one_bar_change`` it is the loss of the M5 competition.
    """
    if quantiles.shape[1] != len(levels):
        raise ValueError(f"{quantiles.shape[1]} quantiles do not go with {len(levels)} levels")
    level = np.asarray(levels)[:, None]  # (num_levels, 1)
    error = actual[:, None, :] - quantiles  # (W, num_levels, H)
    loss: Array = np.maximum(level * error, (level - 1) * error).mean(axis=(1, 2))
    return loss


def coverage(actual: Array, low: Array, high: Array) -> Array:
    """Share of the steps (W, H) that lie in their interval, bounds included, (W,)."""
    share: Array = ((low <= actual) & (actual <= high)).mean(axis=1)
    return share


def width(low: Array, high: Array) -> Array:
    """Mean width of the intervals (W, H), (W,)."""
    mean: Array = (high - low).mean(axis=1)
    return mean


class Improvement(NamedTuple):
    """How much lower one mean loss is than another, in per cent of the other, with a 95 % interval.

    ``low`` and ``high`` are NaN if there are too few windows; all are −inf if the other loss is
    0 and ours is not.
    """

    mean: float
    low: float
    high: float

    @property
    def outcome(self) -> Outcome:
        """Unclear where the interval holds 0, or where there is none."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "unclear"


def improvement(
    ours: Array,
    theirs: Array,
    *,
    groups: NDArray[np.int64] | None = None,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Improvement:
    """The difference of two mean losses, each (W,), over the same windows.

    Interval: percentile bootstrap over windows, which stay paired (Efron and Tibshirani, An Introduction to
    the Bootstrap, 1993, chapter 13). Losses of windows that overlap are alike, and to draw them apart would
    make the interval too narrow: windows of the same number in ``groups`` (W,) are drawn together. With
    fewer than ``MIN_GROUPS`` of them there is no interval.

    Raises ValueError where there are no windows, or not the same ones.
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
    resampled = np.stack(
        [sums[rng.integers(len(sums), size=len(sums))].sum(axis=0) for _ in range(num_resamples)]
    )  # (num_resamples, 2)
    # Never between two of them: one may be infinite.
    low, high = np.quantile(_percent(resampled), (0.025, 0.975), method="nearest")
    return Improvement(mean, float(low), float(high))


def _percent(sums: Array) -> Array:
    """From (..., 2) sums of our loss and theirs; 0 where both are 0."""
    ours, theirs = sums[..., 0], sums[..., 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        percent = 100 * ((theirs - ours) / theirs)
    return np.where(ours == theirs, 0.0, percent)
