"""Naive forecasts of the close as samples, which a model must beat. No torch.

Points are textbook forecasts (Hyndman and Athanasopoulos, Forecasting: Principles and Practice, 3rd edition,
section 5.2). To each point, changes over as many bars are added that are drawn from the lookback's own: no
law of distribution is assumed. The random walk chains single returns of the lookback, so it has paths; it
keeps the lookback's drift, which ``bootstrap.py`` takes away.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.evaluation.windows import Array

NUM_SAMPLES: Final = 200
MIN_CHANGES: Final = 10
"""The fewest changes of the close over some bars to draw from."""

BOOTSTRAP: Final = "bootstrap"
LAST_VALUE: Final = "last_value"
RANDOM_WALK: Final = "random_walk"
NAIVE_TITLES: Final = {
    BOOTSTRAP: "a drift-free bootstrap of the lookback",
    LAST_VALUE: "repeating the last value",
    "drift": "the lookback's trend",
    "seasonal_naive": "repeating the last season",
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
