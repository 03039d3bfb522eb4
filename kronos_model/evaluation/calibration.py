"""Split-conformal corrections of a model's quantiles, from forecasts of past windows. No torch.

A corrected quantile is ``anchor + weight · (quantile − anchor) + shift · scale``; see ``references``.

The weight is the share of the model's own quantile that is kept, the one that makes the loss of the
corrected quantiles smallest. The quantiles of few paths are noisy, and a model's changes of width may mean
nothing. Both widen an interval that is to hold its share; a weight below 1 takes that away.

The shift of a level and bar ahead is the one that would have put the due share of the windows' values below
the quantile. This is the asymmetric version of Romano, Patterson and Candès, Conformalized Quantile
Regression, NeurIPS 2019, theorem 2, for errors divided by the scale. If a new window and those of the fit
are exchangeable, its value lies below the corrected quantile of a level p < 0.5 with a probability of at
most p, and above that of p > 0.5 with at most 1 − p, whatever the model and the weight that was chosen
before. Markets change, windows overlap, and the weight is fitted to the same windows, so this holds as far
as the windows are many, and like the new one.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import CLOSE, VOLUME
from kronos_model.evaluation.windows import Array

MIN_WINDOWS: Final = 30
"""Fewer have no shift of the levels 0.05 and 0.95."""
WEIGHTS: Final = tuple(step / 10 for step in range(11))
WEIGHING_WINDOWS: Final = 2000
"""The most windows that the weight is fitted to."""
HALF_LIFE: Final = 1 / 4
"""Half-life, as a share of the lookback: a change this old weighs half as much as the last."""


def pinball_loss(levels: Sequence[float], quantiles: Array, actual: Array) -> Array:
    """The loss of quantiles (num_levels, W, H), of the same shape: lowest, on average, for the true ones."""
    error = actual - quantiles
    level = np.asarray(levels)[:, None, None]
    return np.maximum(level * error, (level - 1) * error)


class Correction(NamedTuple):
    """The correction of one column; ``shifts`` in its scale, (num_levels, H)."""

    weight: float
    shifts: Array


def references(past: NDArray[np.floating[Any]]) -> tuple[Array, Array]:
    """The anchor and the scale of each column of lookbacks (W, T, 6), both (W, 6).

    Those of prices are the last close and the mean change of the close from bar to bar, in which recent bars
    count more; those of volume and amount are their means. A scale of NaN, because nothing changes, corrects
    nothing.
    """
    past = past.astype(np.float64)
    changes = np.abs(np.diff(past[..., CLOSE], axis=1))
    age = np.arange(changes.shape[1])[::-1]
    mean = past.mean(axis=1)
    anchor, scale = mean.copy(), mean.copy()
    anchor[:, :VOLUME] = past[:, -1, CLOSE, None]
    scale[:, :VOLUME] = np.average(changes, axis=1, weights=0.5 ** (age / (HALF_LIFE * len(age))))[:, None]
    return anchor, np.where(scale > 0, scale, np.nan)


def fit_correction(
    levels: Sequence[float], quantiles: Array, actual: Array, anchor: Array, scale: Array
) -> Correction:
    """The correction of a column, from ``MIN_WINDOWS`` windows or more.

    Args:
        levels: from 0.05 to 0.95.
        quantiles: the model's, (num_levels, W, H).
        actual: what followed, (W, H).
        anchor, scale: of ``references``, the scale above 0, (W,).
    """
    own = (quantiles - anchor[:, None]) / scale[:, None]
    followed = (actual - anchor[:, None]) / scale[:, None]
    some = slice(None, None, 1 + len(actual) // WEIGHING_WINDOWS)

    def loss(weight: float) -> float:
        kept = weight * own[:, some]
        shifts = _shifts(levels, kept, followed[some])
        return float(pinball_loss(levels, kept + shifts[:, None], followed[some]).mean())

    weight = min(WEIGHTS, key=loss)
    return Correction(weight, _shifts(levels, weight * own, followed))


def _shifts(levels: Sequence[float], quantiles: Array, actual: Array) -> Array:
    scores = np.sort(actual - quantiles, axis=1)
    level = np.asarray(levels)
    position = (len(actual) + 1) * level
    # Half a millionth, because 0.1 · 50 is a little more than 5.
    rank = np.where(level < 0.5, np.floor(position + 5e-7), np.ceil(position - 5e-7)).astype(int)
    return np.stack([each[index - 1] for each, index in zip(scores, rank, strict=True)])


def corrected(
    levels: Sequence[float],
    quantiles: Array,
    known_levels: Sequence[float],
    correction: Correction,
    anchor: Array,
    scale: Array,
) -> Array:
    """The quantiles (num_levels, W, H), corrected; at one bar, a higher level has no lower quantile.

    Args:
        known_levels: of the shifts, ascending. Between two of them, the shift is interpolated.
        correction: for H bars ahead or more.
        anchor, scale: of ``references``, (W,).
    """
    steps = correction.shifts[:, : quantiles.shape[2]].T  # (H, num_known_levels)
    by_step = np.stack([np.interp(levels, known_levels, step) for step in steps], axis=1)  # (num_levels, H)
    middle = anchor[:, None]
    moved = middle + correction.weight * (quantiles - middle) + scale[:, None] * by_step[:, None]
    ranks = np.argsort(np.argsort(levels))
    return np.asarray(np.where(np.isnan(scale)[:, None], quantiles, np.sort(moved, axis=0)[ranks]))
