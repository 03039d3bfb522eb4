"""Split-conformal corrections of a model's quantiles of the close, from forecasts of past windows. No torch.

To each quantile, as many mean one-bar changes of the lookback are added as would have put the due share of
the windows' closes below it: the lookback's volatility is the scale. Each level and bar ahead has its own.
This is the asymmetric version of Romano, Patterson and Candès, Conformalized Quantile Regression, NeurIPS
2019, theorem 2. If a new window and those of the fit are exchangeable, its close lies below the corrected
quantile of a level p < 0.5 with a probability of at most p, and above that of p > 0.5 with at most 1 − p,
whatever the model. Markets change and windows overlap, so this holds as far as the windows are many, and like
the new one.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kronos_model.evaluation.window_arrays import Array

MIN_WINDOWS: Final = 30
"""Fewer have no correction of the levels 0.05 and 0.95."""


def fit_corrections(levels: Sequence[float], quantiles: Array, actual: Array, scale: Array) -> Array:
    """The corrections of each level and bar ahead, (num_levels, H), from ``MIN_WINDOWS`` windows or more.

    Args:
        levels: from 0.05 to 0.95.
        quantiles: the model's, (num_levels, W, H).
        actual: closes that followed, (W, H).
        scale: mean one-bar changes of the lookbacks, above 0, (W,).
    """
    scores = np.sort((actual - quantiles) / scale[:, None], axis=1)
    level = np.asarray(levels)
    position = (len(actual) + 1) * level
    # Half a millionth, because 0.1 · 50 is a little more than 5.
    rank = np.where(level < 0.5, np.floor(position + 5e-7), np.ceil(position - 5e-7)).astype(int)
    return np.stack([each[index - 1] for each, index in zip(scores, rank, strict=True)])


def corrected(
    levels: Sequence[float], quantiles: Array, known_levels: Sequence[float], corrections: Array, scale: Array
) -> Array:
    """The quantiles (num_levels, W, H), corrected; at one bar, a higher level has no lower quantile.

    Args:
        known_levels: of the corrections, ascending. Between two of them, the correction is interpolated.
        corrections: in mean one-bar changes, (num_known_levels, H) or for more bars ahead.
        scale: mean one-bar changes of the lookbacks, (W,); NaN, if the close never changes, corrects nothing.
    """
    steps = corrections[:, : quantiles.shape[2]].T  # (H, num_known_levels)
    by_step = np.stack([np.interp(levels, known_levels, step) for step in steps], axis=1)  # (num_levels, H)
    moved = quantiles + np.nan_to_num(scale)[:, None] * by_step[:, None]
    ranks = np.argsort(np.argsort(levels))
    return np.asarray(np.sort(moved, axis=0)[ranks])
