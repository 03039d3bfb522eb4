"""The first forecast that a model must beat: a bootstrap of the lookback, without its drift. No torch.

A path chains changes of the log close that the lookback had, less their mean, in blocks of random length,
which keep what depends on the bar before (Politis and Romano, The stationary bootstrap, JASA 89, 1994). The
mean is taken away because the trend of a short lookback is mostly chance: a forecast that follows it is easy
to beat.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from kronos_model.evaluation.windows import Array

NUM_DRAWS: Final = 10
"""Draws whose scores are averaged: those of one have as much chance in them as the model's own."""
MIN_BARS_FOR_BLOCKS: Final = 64
"""A shorter lookback is drawn from in single changes."""
RUN: Final = 5
"""Autocorrelations in a row that must be small: K of Politis and White, for any number of bars up to 10²⁵."""


def bootstrap_draws(past: Array, num_paths: int, horizon: int, seed: int) -> Iterator[Array]:
    """``NUM_DRAWS`` draws of closes, each (W, S, H), from lookbacks (W, T) of two bars or more."""
    changes = np.diff(np.log(past), axis=1)
    changes -= changes.mean(axis=1, keepdims=True)
    num_windows, number = changes.shape
    lengths = block_lengths(changes) if past.shape[1] >= MIN_BARS_FOR_BLOCKS else np.ones(num_windows)
    rng = np.random.default_rng(seed)
    for _ in range(NUM_DRAWS):
        is_first = rng.random((num_windows, num_paths, horizon)) < 1 / lengths[:, None, None]
        is_first[..., 0] = True
        first_at = np.maximum.accumulate(np.where(is_first, np.arange(horizon), 0), axis=2)
        # The changes lie on a circle: after the last one, a block goes on with the first.
        position = rng.integers(number, size=is_first.shape)
        position = (np.take_along_axis(position, first_at, axis=2) + np.arange(horizon) - first_at) % number
        steps = np.take_along_axis(changes[:, None], position, axis=2)  # (W, S, H)
        yield past[:, -1, None, None] * np.exp(np.cumsum(steps, axis=2))


def block_lengths(changes: Array) -> Array:
    """The mean length of blocks for each window, (W,), from changes (W, N) whose mean is 0.

    Politis and White, Automatic block-length selection for the dependent bootstrap, Econometric Reviews 23
    (2004), with the correction of Patton, Politis and White, Econometric Reviews 28 (2009). As in Patton's
    code, the bandwidth is twice the first of ``RUN`` small autocorrelations.
    """
    number = changes.shape[1]
    most = int(np.ceil(np.sqrt(number))) + RUN
    products = [(changes[:, lag:] * changes[:, : number - lag]).sum(axis=1) for lag in range(most + 1)]
    covariances = np.stack(products, axis=1) / number  # (W, most + 1)
    variance, others = covariances[:, :1], covariances[:, 1:]
    is_small = np.abs(others[:, :-1]) < 2 * np.sqrt(np.log10(number) / number) * variance
    runs: NDArray[np.bool_] = np.asarray(sliding_window_view(is_small, RUN, axis=1).all(axis=2))
    bandwidth = np.minimum(2 * np.where(runs.any(axis=1), 1 + runs.argmax(axis=1), most), most)
    lags = np.arange(1, most + 1)
    weighted = others * np.clip(2 * (1 - lags / bandwidth[:, None]), 0, 1)
    spread = 2 * (weighted * lags).sum(axis=1)
    spectrum = variance[:, 0] + 2 * weighted.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        best = np.abs(spread / spectrum) ** (2 / 3) * number ** (1 / 3)
    longest = np.ceil(min(3 * np.sqrt(number), number / 3))
    return np.asarray(np.clip(np.nan_to_num(best, nan=1.0), 1, longest))
