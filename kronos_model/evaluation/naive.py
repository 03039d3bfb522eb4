"""Naive forecasts of the close as samples, which a model must beat. No torch.

Points are textbook forecasts (Hyndman and Athanasopoulos, Forecasting: Principles and Practice, 3rd edition,
section 5.2). To each point, changes over as many bars are added that are drawn from the lookback's own: no
law of distribution is assumed. The random walk chains single returns of the lookback, so it has paths; it
keeps the lookback's drift.

The first forecast that a model must beat is a bootstrap of the lookback, without its drift. A path chains
changes of the log close that the lookback had, less their mean, in blocks of random length, which keep what
depends on the bar before (Politis and Romano, The stationary bootstrap, JASA 89, 1994). The mean is taken
away because the trend of a short lookback is mostly chance: a forecast that follows it is easy to beat.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from kronos_model.evaluation.windows import Array

NUM_SAMPLES: Final = 200
MIN_CHANGES: Final = 10
"""The fewest changes of the close over some bars to draw from."""

NUM_DRAWS: Final = 10
"""Draws whose scores are averaged: those of one have as much chance in them as the model's own."""
MIN_BARS_FOR_BLOCKS: Final = 64
"""A shorter lookback is drawn from in single changes."""
NUM_SMALL_LAGS: Final = 5
"""Autocorrelations in a row that must be small: K of Politis and White, for any number of bars up to 10²⁵."""

BOOTSTRAP: Final = "bootstrap"
LAST_VALUE: Final = "last_value"
RANDOM_WALK: Final = "random_walk"
NAIVE_TITLES: Final = {
    BOOTSTRAP: "a drift-free bootstrap of the lookback",
    LAST_VALUE: "the last value with a spread",
    "drift": "the lookback's trend",
    "seasonal_naive": "the last season with a spread",
    RANDOM_WALK: "a random walk of the lookback's returns",
}


def naive_samples(past: Array, horizon: int, season: int | None, seed: int) -> Mapping[str, Array]:
    """``NUM_SAMPLES`` closes of each further naive forecast by its name, (W, S, H), from lookbacks (W, T).

    ``seasonal_naive`` is there if ``season`` is given; see ``why_not_seasonal``.
    """
    num_windows, num_bars = past.shape
    rng = np.random.default_rng(seed)
    last = past[:, -1, None, None]
    changes = _changes(past, horizon, rng)
    slope = (past[:, -1] - past[:, 0])[:, None, None] / (num_bars - 1)
    samples = {LAST_VALUE: last + changes, "drift": last + slope * np.arange(1, horizon + 1) + changes}
    if season is not None:
        samples["seasonal_naive"] = past[:, None, num_bars - season + np.arange(horizon) % season] + changes
    returns = np.diff(np.log(past), axis=1)
    drawn = rng.integers(returns.shape[1], size=(num_windows, NUM_SAMPLES, horizon))
    steps = np.take_along_axis(returns[:, None], drawn, axis=2)
    samples[RANDOM_WALK] = last * np.exp(np.cumsum(steps, axis=2))
    return samples


def _changes(past: Array, horizon: int, rng: np.random.Generator) -> Array:
    """Changes over 1 to H bars, drawn from the lookback's own without their mean, (W, S, H).

    Beyond the lags that have ``MIN_CHANGES`` in the lookback, they grow as a random walk's do.
    """
    max_lag = max(1, past.shape[1] - MIN_CHANGES)
    changes = np.empty((len(past), NUM_SAMPLES, horizon))
    for step in range(1, horizon + 1):
        lag = min(step, max_lag)
        own = past[:, lag:] - past[:, :-lag]
        own = (own - own.mean(axis=1, keepdims=True)) * np.sqrt(step / lag)
        drawn = rng.integers(own.shape[1], size=(len(past), NUM_SAMPLES))
        changes[..., step - 1] = np.take_along_axis(own, drawn, axis=1)
    return changes


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
    code, the bandwidth is twice the first of ``NUM_SMALL_LAGS`` small autocorrelations.
    """
    number = changes.shape[1]
    most = int(np.ceil(np.sqrt(number))) + NUM_SMALL_LAGS
    products = [(changes[:, lag:] * changes[:, : number - lag]).sum(axis=1) for lag in range(most + 1)]
    covariances = np.stack(products, axis=1) / number  # (W, most + 1)
    variance, others = covariances[:, :1], covariances[:, 1:]
    is_small = np.abs(others[:, :-1]) < 2 * np.sqrt(np.log10(number) / number) * variance
    runs: NDArray[np.bool_] = np.asarray(sliding_window_view(is_small, NUM_SMALL_LAGS, axis=1).all(axis=2))
    bandwidth = np.minimum(2 * np.where(runs.any(axis=1), 1 + runs.argmax(axis=1), most), most)
    lags = np.arange(1, most + 1)
    weighted = others * np.clip(2 * (1 - lags / bandwidth[:, None]), 0, 1)
    spread = 2 * (weighted * lags).sum(axis=1)
    spectrum = variance[:, 0] + 2 * weighted.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        best = np.abs(spread / spectrum) ** (2 / 3) * number ** (1 / 3)
    longest = np.ceil(min(3 * np.sqrt(number), number / 3))
    return np.asarray(np.clip(np.nan_to_num(best, nan=1.0), 1, longest))
