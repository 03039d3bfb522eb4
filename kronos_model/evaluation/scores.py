"""Scores of sampled closes, by window and step, and their means over any number of windows. No torch.

Arrays are float64: sampled closes (W, S, H), actual closes (W, H), lookbacks (W, T).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.evaluation.calibration import pinball_loss
from kronos_model.evaluation.windows import Array, one_bar_change
from kronos_model.forecast import path_quantiles

LEVELS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Levels of the quantiles whose loss is scored."""
INTERVALS: Final = ("0.5", "0.8", "0.9")
"""Central intervals whose coverage and width are scored, as keys of JSON."""
NUM_PIT_BINS: Final = 10
MAX_SPANS: Final = 8
"""Scores by window are kept for so many spans of bars ahead at most, because memory grows with them."""
MIN_INSTRUMENTS: Final = 3
"""Fewer instruments at one time have no information coefficient that means anything."""


def spans_of(horizon: int) -> list[NDArray[np.int64]]:
    """The bars ahead, counted from 0, in spans of nearly equal length."""
    return np.array_split(np.arange(horizon), min(horizon, MAX_SPANS))


def sample_quantiles(samples: Array, levels: Sequence[float]) -> Array:
    """Quantiles over the paths, (num_levels, W, H)."""
    return path_quantiles(samples.swapaxes(0, 1), levels)


def crps(samples: Array, actual: Array) -> Array:
    """The continuous ranked probability score of paths, (W, H), lower is better.

    It is unbiased for the distribution that the paths are drawn from, whatever their number: the estimator
    by probability-weighted moments (Zamo and Naveau, Estimation of the CRPS with limited information on the
    ensemble, Mathematical Geosciences 50, 2018).
    """
    num_paths = samples.shape[1]
    weights = (2 * np.arange(1, num_paths + 1) - num_paths - 1) / (num_paths * (num_paths - 1))
    distance = np.abs(samples - actual[:, None]).mean(axis=1)
    return np.asarray(distance - np.einsum("wsh,s->wh", np.sort(samples, axis=1), weights))


def score_paths(samples: Array, actual: Array, past: Array) -> dict[str, Array]:
    """Each score by window and step, (W, H); NaN where a window has none.

    - ``crps``: continuous ranked probability score, in price units; see ``crps``.
    - ``quantile_loss``: pinball loss, mean over ``LEVELS``.
    - ``error``: absolute error of the median.
    - ``inside_P``, ``width_P``: whether the central interval of P holds the close, and its width.
    - ``rank``: number of paths below the close; of equal ones, half count.
    - ``direction``: whether the median is on the close's side of the last close; NaN if either is on none.
    """
    last = past[:, -1:]
    quantiles = sample_quantiles(samples, LEVELS)
    median = quantiles[LEVELS.index(0.5)]
    sides = np.sign(median - last) * np.sign(actual - last)
    below = (samples < actual[:, None]).sum(axis=1) + 0.5 * (samples == actual[:, None]).sum(axis=1)
    scores: dict[str, Array] = {
        "crps": crps(samples, actual),
        "quantile_loss": pinball_loss(LEVELS, quantiles, actual).mean(axis=0),
        "error": np.abs(actual - median),
        "rank": np.floor(below),
        "direction": np.where(sides == 0, np.nan, sides > 0),
    }
    for share in INTERVALS:
        tail = (1 - float(share)) / 2
        low, high = sample_quantiles(samples, (tail, 1 - tail))
        scores[f"inside_{share}"] = ((low <= actual) & (actual <= high)).astype(float)
        scores[f"width_{share}"] = high - low
    return scores


def volatility(closes: Array) -> Array:
    """Realised volatility: the root mean square of the log returns from bar to bar along the last axis."""
    returns = np.diff(np.log(closes), axis=-1)
    return np.asarray(np.sqrt((returns**2).mean(axis=-1)))


def volatility_error(samples: Array, actual: Array, past: Array) -> Array:
    """Error of the paths' mean realised volatility, in volatilities of the lookback, (W,).

    NaN if the lookback's close never changes, or if a price is not above zero.
    """
    last = past[:, -1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = volatility(np.concatenate([np.repeat(last[:, None], samples.shape[1], 1), samples], 2))
        error = np.abs(expected.mean(axis=1) - volatility(np.concatenate([last, actual], 1)))
        error = error / volatility(past)
    return np.where(np.isfinite(error), error, np.nan)


class ScoreTotals:
    """The scores of one forecaster, summed window by window: memory grows by a few numbers a window."""

    def __init__(self, *, has_paths: bool) -> None:
        """``has_paths``: whether a sample's steps belong together; if not, there is no volatility."""
        self._has_paths = has_paths
        self._sums: dict[str, Array] = {}  # (H,) each
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._ranks: NDArray[np.int64] | None = None  # (S + 1,)
        self._by_window: dict[str, list[Array]] = {}

    def add(self, draws: Iterable[Array], actual: Array, past: Array) -> None:
        """Add W windows, in the order in which ``by_window`` is to return them.

        Of several draws of samples, each (W, S, H), the scores are means.
        """
        each = [self._add(samples, actual, past) for samples in draws]
        for name in each[0]:
            mean = np.mean([draw[name] for draw in each], axis=0)
            self._by_window.setdefault(name, []).append(mean)

    def _add(self, samples: Array, actual: Array, past: Array) -> Mapping[str, Array]:
        """Add to the sums, and return the values by window."""
        scale = one_bar_change(past)  # (W,)
        scores = score_paths(samples, actual, past)
        for name in ("crps", "error", *(f"width_{share}" for share in INTERVALS)):
            scores[f"{name}_scaled"] = scores[name] / scale[:, None]
        scores["size"] = np.abs(actual)
        for name, values in scores.items():
            is_known = np.isfinite(values)
            zeros = np.zeros(values.shape[1])
            self._sums[name] = self._sums.get(name, zeros) + np.where(is_known, values, 0).sum(axis=0)
            self._counts[name] = self._counts.get(name, zeros.astype(np.int64)) + is_known.sum(axis=0)
        ranks = np.bincount(scores["rank"].astype(int).ravel(), minlength=samples.shape[1] + 1)
        self._ranks = ranks if self._ranks is None else self._ranks + ranks
        last, median = past[:, -1], np.median(samples[..., -1], axis=1)
        errors = volatility_error(samples, actual, past) if self._has_paths else scale * np.nan
        return {
            "crps_scaled": scores["crps_scaled"].mean(axis=1),
            "crps_scaled_by_span": np.stack(
                [scores["crps_scaled"][:, span].mean(axis=1) for span in spans_of(actual.shape[1])], axis=1
            ),  # (W, P)
            "quantile_loss": scores["quantile_loss"].mean(axis=1),
            "predicted_return": median / last - 1,
            "actual_return": actual[:, -1] / last - 1,
            "volatility_error": errors,
            "inside_0.8": scores["inside_0.8"].mean(axis=1),
        }

    @property
    def num_samples(self) -> int:
        """Samples of each window."""
        assert self._ranks is not None, "scores of no windows"
        return len(self._ranks) - 1

    def by_window(self, name: str) -> Array:
        """One of the values of ``add``'s windows, such as ``inside_0.8``, (W,); by span (W, P)."""
        return np.concatenate(self._by_window[name])

    def scores(self, times: NDArray[np.datetime64]) -> dict[str, Any]:
        """All scores, with ``by_horizon``. ``times`` (W,): when each window's forecast begins."""

        def overall(name: str) -> float | None:
            return _ratio(self._sums[name].sum(), self._counts[name].sum())

        def by_step(name: str) -> list[float | None]:
            return list(map(_ratio, self._sums[name], self._counts[name]))

        def summary(of: Callable[[str], Any]) -> dict[str, Any]:
            return {
                "crps": of("crps"),
                "crps_scaled": of("crps_scaled"),
                "mae": of("error"),
                "mase": of("error_scaled"),
                "coverage": {share: of(f"inside_{share}") for share in INTERVALS},
                "width": {share: of(f"width_{share}") for share in INTERVALS},
                "width_scaled": {share: of(f"width_{share}_scaled") for share in INTERVALS},
                "direction_accuracy": of("direction"),
            }

        # Twice the summed loss over the summed size, as GluonTS has it.
        loss, size = self._sums["quantile_loss"], self._sums["size"]
        errors = self.by_window("volatility_error")
        predicted, actual = self.by_window("predicted_return"), self.by_window("actual_return")
        return {
            **summary(overall),
            "wql": _ratio(2 * loss.sum(), size.sum()),
            "pit": self._pit(),
            "volatility_error": finite_or_none(np.nanmean(errors)) if np.isfinite(errors).any() else None,
            **information_coefficients(predicted, actual, times),
            "by_horizon": summary(by_step)
            | {"wql": [_ratio(*pair) for pair in zip(2 * loss, size, strict=True)]},
        }

    def _pit(self) -> list[float]:
        """Shares of closes by probability integral transform, in ``NUM_PIT_BINS`` bins: all equal at best.

        A rank among S paths stands for a probability anywhere in 1/(S + 1) of the range (Czado, Gneiting and
        Held, Predictive model assessment for count data, Biometrics 65, 2009).
        """
        assert self._ranks is not None, "scores of no windows"
        below = np.concatenate([[0], np.cumsum(self._ranks)]) / self._ranks.sum()
        edges = np.linspace(0, 1, NUM_PIT_BINS + 1)
        return list(np.diff(np.interp(edges, np.linspace(0, 1, len(below)), below)).tolist())


def information_coefficients(
    predicted: Array, actual: Array, times: NDArray[np.datetime64]
) -> Mapping[str, float | None]:
    """``ic`` and ``rank_ic``: correlation over instruments of predicted and actual returns, mean over times.

    Pearson's and Spearman's (Grinold and Kahn, Active Portfolio Management, 2nd edition, 2000, chapter 6).
    Times with fewer than ``MIN_INSTRUMENTS``, or at which all returns are equal, are left out.
    """
    found: dict[str, list[float]] = {"ic": [], "rank_ic": []}
    for group in at_common_times(times):
        ours, theirs = predicted[group], actual[group]
        if not np.ptp(ours) or not np.ptp(theirs):
            continue
        from scipy.stats import pearsonr, rankdata  # takes as long as pandas; one instrument needs none

        found["ic"].append(float(pearsonr(ours, theirs).statistic))
        found["rank_ic"].append(float(pearsonr(rankdata(ours), rankdata(theirs)).statistic))
    return {name: sum(values) / len(values) if values else None for name, values in found.items()}


def at_common_times(times: NDArray[np.datetime64]) -> list[NDArray[np.int64]]:
    """The indices of the windows at each time (W,) that has ``MIN_INSTRUMENTS`` or more, in order."""
    order = np.argsort(times, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(times[order])) + 1)
    return [group for group in groups if len(group) >= MIN_INSTRUMENTS]


def _ratio(total: float, count: float) -> float | None:
    return float(total / count) if count else None


def finite_or_none(value: float | np.floating[Any]) -> float | None:
    """A number that JSON can hold."""
    return float(value) if math.isfinite(value) else None
