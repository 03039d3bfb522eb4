"""The report of an evaluation: scores of each forecaster, differences with intervals, verdicts. No torch."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from kronos_model.evaluation.naive import (
    BOOTSTRAP,
    NAIVE_TITLES,
    RANDOM_WALK,
    bootstrap_draws,
    naive_samples,
)
from kronos_model.evaluation.scores import INTERVALS, ScoreTotals, finite_or_none, spans_of
from kronos_model.evaluation.windows import MIN_GROUPS, MIN_WINDOWS, Array, WindowTimes
from kronos_model.text import plural

START: Final = "start"
"""The model before finetuning, in the report after it."""
BASELINES: Final = {**NAIVE_TITLES, START: "the model before finetuning"}
"""What a model must beat, as the verdict calls it; other models keep their names."""
GOOD_COVERAGE: Final = (0.75, 0.85)
"""Acceptable coverage of an 80 % interval; the verdict calls others too narrow or too wide."""
MIN_PATHS: Final = 9
"""Fewer have no interval between two of them that holds 80 % of further paths."""
MIN_TIMES: Final = 8
"""Fewer times have no test."""
Outcome = Literal["better", "worse", "unclear"]


@dataclass(frozen=True, eq=False)
class WindowBatch:
    """W windows in the order of their numbers, with each model's sampled closes.

    Attributes:
        past: closes of the lookbacks, (W, T).
        actual: closes that followed, (W, H).
        samples: (W, S, H) by model.
    """

    past: Array
    actual: Array
    samples: Mapping[str, Array]


def few_windows(number: int) -> str:
    """What a verdict says of less than ``MIN_WINDOWS``."""
    are = "is" if number == 1 else "are"
    return f"{plural(number, 'window')} {are} few: ask for {MIN_WINDOWS} or more to see differences."


def make_report(
    batches: Iterable[WindowBatch],
    times: WindowTimes,
    *,
    season: int | None,
    seed: int,
    bootstrap_losses: list[Array] | None = None,
) -> dict[str, Any]:
    """Score all models and the naive forecasts on the same windows.

    Args:
        times: of all windows.
        season: bars of the seasonal forecast's season, or None to leave it out.
        seed: of the naive forecasts' draws.
        bootstrap_losses: gets the bootstrap's pinball losses of the windows, (W,).
    """
    totals: dict[str, ScoreTotals] = {}
    horizon, first, names = 1, 0, []
    for batch in batches:
        horizon, names = batch.actual.shape[1], list(batch.samples)
        naive = naive_samples(batch.past, horizon, season, seed + first)
        num_paths = max(samples.shape[1] for samples in batch.samples.values())
        bootstrap = bootstrap_draws(batch.past, num_paths, horizon, seed + first)
        draws: dict[str, Iterable[Array]] = {BOOTSTRAP: bootstrap}
        draws |= {name: [samples] for name, samples in (*batch.samples.items(), *naive.items())}
        for name, of_name in draws.items():
            has_paths = name in (*batch.samples, BOOTSTRAP, RANDOM_WALK)
            mine = totals.setdefault(name, ScoreTotals(has_paths=has_paths))
            mine.add(of_name, batch.actual, batch.past)
        first += len(batch.actual)
    if bootstrap_losses is not None:
        bootstrap_losses.append(totals[BOOTSTRAP].by_window("quantile_loss"))
    models: dict[str, Any] = {}
    for name in names:
        against = {
            other: compare(totals[name], theirs, times) for other, theirs in totals.items() if other != name
        }
        against[BOOTSTRAP]["by_span"] = compare_spans(totals[name], totals[BOOTSTRAP], times, horizon)
        scores = totals[name].scores(times.begins)
        by_horizon = scores.pop("by_horizon")
        models[name] = {
            "scores": scores,
            "against": against,
            "by_horizon": by_horizon,
            "verdict": [
                *verdict(against),
                coverage_line(scores["coverage"], totals[name], times),
                *([few_windows(first)] if first < MIN_WINDOWS else []),
            ],
        }
    naive_scores = {name: totals[name].scores(times.begins) for name in totals if name not in models}
    return {"num_windows": first, "models": models, "naive": naive_scores}


def without_steps(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report without its scores by bar ahead, which are most of its size."""
    short = {
        part: {
            name: {field: value for field, value in entry.items() if field != "by_horizon"}
            for name, entry in report[part].items()
        }
        for part in ("models", "naive")
    }
    return {**report, **short}


def compare(ours: ScoreTotals, theirs: ScoreTotals, times: WindowTimes) -> dict[str, Any]:
    """How much lower our scaled CRPS is, in per cent of theirs, with a 95 % interval and a test."""
    our_loss, their_loss = ours.by_window("crps_scaled"), theirs.by_window("crps_scaled")
    is_scaled = np.isfinite(our_loss) & np.isfinite(their_loss)
    if not is_scaled.any():
        return {"difference": None, "low": None, "high": None, "verdict": "unclear", "dm": None}
    by = improvement(our_loss[is_scaled], their_loss[is_scaled], times.groups[is_scaled])
    return {
        **by.as_dict(),
        "dm": diebold_mariano((our_loss - their_loss)[is_scaled], times.begins[is_scaled], lags=times.lags),
    }


def compare_spans(
    ours: ScoreTotals, theirs: ScoreTotals, times: WindowTimes, horizon: int
) -> list[dict[str, Any]]:
    """The differences of ``compare`` for each span of bars ahead, ``first`` to ``last``, counted from 1."""
    pairs = np.stack([each.by_window("crps_scaled_by_span") for each in (ours, theirs)])  # (2, W, P)
    spans = []
    for place, span in enumerate(spans_of(horizon)):
        is_scaled = np.isfinite(pairs[..., place]).all(axis=0)
        if is_scaled.any():
            our_loss, their_loss = pairs[:, is_scaled, place]
            by = improvement(our_loss, their_loss, times.groups[is_scaled])
            spans.append({"first": int(span[0]) + 1, "last": int(span[-1]) + 1, **by.as_dict()})
    return spans


def diebold_mariano(
    differences: Array, times: NDArray[np.datetime64], *, lags: int
) -> dict[str, float] | None:
    """Test of equal accuracy: ``statistic``, below 0 if we are better, and the two-sided ``p_value``.

    Diebold and Mariano, Comparing predictive accuracy, JBES 13 (1995), with the correction for few windows of
    Harvey, Leybourne and Newbold, International Journal of Forecasting 13 (1997). The instruments'
    differences at one time count as one, their mean. ``lags``: how many earlier times overlap a window's
    future; see ``standard_error``. None for fewer than ``MIN_TIMES``, or if all differences are equal.
    """
    by_time, index = np.unique(times, return_inverse=True)
    series = np.bincount(index, weights=differences) / np.bincount(index)
    number = len(by_time)
    if (error := standard_error(series, lags)) is None:
        return None
    statistic = series.mean() / error
    ahead = min(lags, number // 2) + 1
    statistic *= math.sqrt(max(number + 1 - 2 * ahead + ahead * (ahead - 1) / number, 1) / number)
    p_value = 2 * stdtr(number - 1, -abs(statistic))
    return {"statistic": float(statistic), "p_value": float(p_value)}


def standard_error(series: Array, lags: int) -> float | None:
    """The standard error of the mean of a series (N,) whose values depend on ``lags`` earlier ones.

    The weights of their covariances fall to 0, which keeps the variance positive: Newey and West,
    A simple, positive semi-definite, heteroskedasticity and autocorrelation consistent covariance matrix,
    Econometrica 55 (1987), times N / (N - 1), as for values that do not depend on others. None for fewer than
    ``MIN_TIMES`` values, or if all are equal.
    """
    if len(series) < MIN_TIMES or not np.ptp(series):
        return None
    centred, lags = series - series.mean(), min(lags, len(series) // 2)
    variance = centred @ centred
    for lag in range(1, lags + 1):
        variance += 2 * (1 - lag / (lags + 1)) * (centred[lag:] @ centred[:-lag])
    return math.sqrt(variance / (len(series) * (len(series) - 1)))


def verdict(against: Mapping[str, Any]) -> list[str]:
    """The result in plain sentences, first whether to believe the model at all."""
    titles = {name: title for name, title in BASELINES.items() if name in against}
    worse = [title for name, title in titles.items() if against[name]["verdict"] == "worse"]
    unclear = [title for name, title in titles.items() if against[name]["verdict"] == "unclear"]
    if worse:
        first = f"WORSE than {_listed(worse)} on these candles."
    elif unclear:
        first = f"Not shown to be better than {_listed(unclear)}."
    else:
        first = f"Better than {_listed([*titles.values()])} on these candles."
    return [first, *(f"{compared(BASELINES.get(name, name), by)}." for name, by in against.items())]


def coverage_line(coverage: Mapping[str, float], totals: ScoreTotals, times: WindowTimes) -> str:
    """What the intervals held, and whether the 80 % interval is too narrow or too wide.

    The bars of a window are held or missed together, so chance alone moves the coverage of a few windows far
    from 80 %: a calibrated model of 40 windows left ``GOOD_COVERAGE`` in 13 % of cases.
    """
    shares = ", ".join(
        f"the {100 * float(share):.0f} % interval {100 * coverage[share]:.0f} %" for share in INTERVALS
    )
    line = f"Closes held by {shares}"
    if totals.num_samples < MIN_PATHS:
        return f"{line}: {totals.num_samples} paths are too few for an 80 % interval."
    covered, (low, high) = coverage["0.8"], GOOD_COVERAGE
    if low <= covered <= high:
        return f"{line}."
    inside = totals.by_window("inside_0.8")
    is_clear = abs(covered - 0.8) > mean_interval(inside, times.groups)[1]
    return f"{line}: {'' if is_clear else 'perhaps '}too {'narrow' if covered < low else 'wide'}."


def compared(other: str, by: Mapping[str, Any]) -> str:
    """A comparison, as ``Improvement.as_dict`` has it, in words."""
    if by["difference"] is None:
        return f"Not comparable with {other}"
    if by["low"] == by["high"] == 0:
        return f"The same as {other}"
    size = f"{abs(by['difference']):.1f} % {'better' if by['difference'] >= 0 else 'worse'}"
    if by["low"] is None:
        return f"{size} than {other}, on too few windows to be sure"
    bounds = f"95 % interval {by['low']:+.1f} to {by['high']:+.1f} %"
    sure = "" if by["verdict"] != "unclear" else ", which is no clear difference"
    return f"{size} than {other} ({bounds}{sure})"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


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

    def as_dict(self) -> dict[str, Any]:
        """As a report has it."""
        bounds = {"difference": self.mean, "low": self.low, "high": self.high}
        return {name: finite_or_none(value) for name, value in bounds.items()} | {"verdict": self.outcome}


def improvement(ours: Array, theirs: Array, groups: NDArray[np.int64]) -> Improvement:
    """The improvement of the mean of ``ours`` (W,) over that of ``theirs`` (W,), losses on the same windows.

    The interval is that of the mean difference; see ``mean_interval``. Between equally good forecasts, 6 to
    40 groups of one to four windows, with losses of light and heavy tails, were called better or worse in 2
    to 6 % of cases; intervals by percentile bootstrap said so in 7 to 18 %.
    """
    if not theirs.any():
        return Improvement(*[-np.inf if ours.any() else 0.0] * 3)
    difference, half_width = mean_interval(theirs - ours, groups)
    mean, half_width = (100 * value / float(theirs.mean()) for value in (difference, half_width))
    return Improvement(mean, mean - half_width, min(mean + half_width, 100.0))


def mean_interval(values: Array, groups: NDArray[np.int64]) -> tuple[float, float]:
    """The mean of the windows' values (W,), and half the width of its 95 % interval (Student's t).

    Overlapping windows have similar values; counted singly, they would make the interval too narrow. So
    windows with one number in ``groups`` (W,) count once, by their sum. The half is NaN for fewer than
    ``MIN_GROUPS`` groups.
    """
    sums = np.bincount(np.unique(groups, return_inverse=True)[1], weights=values)  # (G,)
    number, mean = len(sums), float(values.mean())
    if number < MIN_GROUPS:
        return mean, math.nan
    error = math.sqrt(number) * float(sums.std(ddof=1)) / len(values)
    return mean, float(stdtrit(number - 1, 0.975)) * error
