"""Adaptive conformal inference: a feed's intervals, wider or narrower by how its past ones held. No Redis.

After each scored bar, the logarithm of the width grows by a step times what an interval should have held
minus what it held (Gibbs and Candès, Adaptive conformal inference under distribution shift, NeurIPS 2021; on
widths as in Angelopoulos, Candès and Tibshirani, Conformal PID control, NeurIPS 2023). So the share that is
held tends to the promised one, whatever the market does. Bars one step ahead say first that volatility has
changed, so they steer all horizons: by a part of all series, which a new one starts from, and a part of its
own. Each further horizon has a part of all series that corrects what is left, more slowly, because its
errors overlap.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kronos_client.contract.results import SCORED_LEVELS, SeriesForecast
from kronos_client.feeds.scores import INTERVALS, STEP_SUMS
from kronos_model.evaluation.windows import Array

STEP: Final = 0.1
FURTHER_STEP: Final = 0.03
LIMIT: Final = 2.0
"""Of each part, so that it returns soon: a width changes at most e⁴-fold."""
SHARES: Final = np.array([float(share) / 100 for share in INTERVALS])  # 95, 80 and 50 %


def errors(sums: Array) -> Array:
    """What intervals should have held minus what they held, (…, 3, H), from ``STEP_SUMS`` (…, 6, H)."""
    first = STEP_SUMS.index(f"inside_{INTERVALS[0]}")
    return np.asarray(SHARES[:, None] * sums[..., :1, :] - sums[..., first : first + len(INTERVALS), :])


def changes(error: Array, num_series: int) -> tuple[Array, Array]:
    """By what the errors of one series (…, 3, H) change its own part, (…, 3), and that of all, (…, 3, H)."""
    steps = np.full(error.shape[-1], FURTHER_STEP)
    steps[0] = STEP
    return (1 - 1 / num_series) * STEP * error[..., 0], error * steps / num_series


def clipped(part: Array) -> Array:
    """A part within its limit."""
    return np.clip(part, -LIMIT, LIMIT)


def factors(own: Array, shared: Array) -> Array:
    """By what intervals are widened, (…, 3, H), from the parts of a series, (…, 3), and of all, (…, 3, H)."""
    further = shared.copy()
    further[..., 0] = 0
    return np.asarray(np.exp((own + shared[..., 0])[..., None] + further))


def widened(levels: Sequence[float], quantiles: Array, median: Array, by: Array) -> Array:
    """Quantiles (L, H), widened around the median (H,) by ``factors`` (3, H), and sorted by level.

    Between the ends of two intervals, the factor is interpolated; beyond the outermost it is theirs.
    """
    distance = np.abs(np.asarray(levels) - 0.5)
    at_level = [np.interp(distance, SHARES[::-1] / 2, step[::-1]) for step in by.T]
    moved = median + np.stack(at_level, axis=1) * (quantiles - median)
    return np.asarray(np.sort(moved, axis=0)[np.argsort(np.argsort(levels))])


def widened_forecast(forecast: SeriesForecast, by: Array) -> SeriesForecast:
    """A whole forecast with its close's quantiles widened, which its manifest says."""
    quantiles, scored = {**forecast.quantiles}, np.array(forecast.scoring)
    median = scored[SCORED_LEVELS.index(0.5)]
    if quantiles:
        closes = np.array([columns["close"] for columns in quantiles.values()])
        rows = widened([float(level) for level in quantiles], closes, median, by).tolist()
        for (level, columns), row in zip(forecast.quantiles.items(), rows, strict=True):
            quantiles[level] = {**columns, "close": tuple(row)}
    scoring = widened(SCORED_LEVELS, scored, median, by).tolist()
    forecast = forecast.model_copy(update={"quantiles": quantiles, "scoring": scoring})
    manifest = forecast.manifest
    if manifest is not None:
        manifest = manifest.with_hash(forecast, widened_by=tuple(map(tuple, by.tolist())))
    return forecast.model_copy(update={"manifest": manifest})
