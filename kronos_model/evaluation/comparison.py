"""Compares a model with its start and with naive forecasts, on windows it has not seen. No torch.

The measure is the pinball loss of the close, because a forecast is a distribution. The loss punishes
misplaced quantiles and intervals that are too wide or too narrow.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from kronos_model.errors import InputError, TrainingDiverged
from kronos_model.evaluation.naive import CloseForecast, last_value, seasonal, why_not_seasonal
from kronos_model.evaluation.scores import (
    LEVELS,
    MIN_GROUPS,
    Array,
    Improvement,
    coverage,
    improvement,
    mae,
    one_bar_change,
    pinball,
)
from kronos_model.evaluation.window_arrays import WindowArrays

START: Final = "start"
LAST_VALUE: Final = "last_value"
SEASONAL: Final = "seasonal_naive"

NAMES: Final = {
    START: "before finetuning",
    LAST_VALUE: "repeating the last value",
    SEASONAL: "repeating the last season",
}
"""Names in the verdict; other forecasters keep their own."""

GOOD_COVERAGE: Final = (0.7, 0.9)
"""Acceptable coverage of an 80 % interval; the verdict calls others too narrow or too wide."""


Forecaster = Callable[[WindowArrays, Sequence[float]], CloseForecast]
"""Forecasts windows from their lookbacks alone, with quantiles at some levels; see ``ModelForecaster``."""


@dataclass(frozen=True)
class Scores:
    """Means over the windows.

    ``mae``, ``pinball`` and ``width_80`` are in units of the price. ``mase``, ``pinball_scaled`` and
    ``width_80_scaled`` are in mean one-bar changes of each window's lookback, and NaN if no lookback's close
    changes. ``coverage_80`` is a share, 0.8 at best.
    """

    mae: float
    mase: float
    pinball: float
    pinball_scaled: float
    coverage_80: float
    width_80: float
    width_80_scaled: float


@dataclass(frozen=True)
class Evaluation:
    """The result of a comparison.

    Attributes:
        judged: the forecaster that is compared with each other one.
        num_constant: windows whose lookback's close never changes; they count in price units only.
        why_no_seasonal: the reason if the seasonal forecast is left out.
        improvements: of the judged forecaster over each other one, in scaled pinball loss.
    """

    judged: str
    num_windows: int
    num_constant: int
    lookback: int
    horizon: int
    season: int | None
    why_no_seasonal: str | None
    scores: Mapping[str, Scores]
    improvements: Mapping[str, Improvement]

    def verdict(self) -> list[str]:
        """The result in plain sentences. The first one warns if another forecaster is better."""
        scores = self.scores[self.judged]
        lines = []
        by_name = {NAMES.get(name, name): by for name, by in self.improvements.items()}
        if worse_than := [name for name, by in by_name.items() if by.outcome == "worse"]:
            lines.append(
                f"WORSE: on held-out candles this model forecasts worse than {' and than '.join(worse_than)}."
            )
        scaled = ""
        if math.isfinite(scores.pinball_scaled):
            scaled = f", {scores.pinball_scaled:.3g} times the lookback's mean change from bar to bar"
        lines.append(
            f"Pinball loss of the close {scores.pinball:.4g}{scaled}, over {self.num_windows} windows of "
            f"{self.horizon} bars."
        )
        lines += [_compared(name, by) for name, by in by_name.items()]
        lines.append(_covered(scores.coverage_80))
        if self.why_no_seasonal is not None:
            lines.append(f"Not compared with {NAMES[SEASONAL]}: {self.why_no_seasonal}.")
        if self.num_constant:
            lines.append(
                f"Windows not compared, as the close of their lookback never changes: {self.num_constant}."
            )
        return lines

    def as_dict(self) -> dict[str, Any]:
        """The result, JSON-compatible: numbers that are not finite become None."""
        return {
            **asdict(self),
            "levels": list(LEVELS),
            "scores": {name: _finite(asdict(scores)) for name, scores in self.scores.items()},
            "improvements": {
                name: {
                    **_finite({"percent": by.mean, "low_percent": by.low, "high_percent": by.high}),
                    "outcome": by.outcome,
                }
                for name, by in self.improvements.items()
            },
            "verdict": self.verdict(),
        }


def evaluate(
    candidates: Mapping[str, Forecaster], windows: WindowArrays, *, season: int | None, seed: int = 0
) -> Evaluation:
    """Score the candidates and the naive forecasts; the first candidate is judged.

    Args:
        candidates: by name; ``START`` is the model before finetuning.
        season: bars of the seasonal forecast's season, for example from ``infer_season``.
        seed: of the bootstrap for the intervals.

    Raises:
        InputError: no windows, or a candidate with the name of a naive forecast.
        TrainingDiverged: a candidate's forecast is not finite.
    """
    if not candidates or not len(windows):
        raise InputError("an evaluation needs at least one candidate and one window", field="windows")
    past, actual = windows.past_closes, windows.future_closes
    forecasts = {name: forecaster(windows, LEVELS) for name, forecaster in candidates.items()}
    naive = {LAST_VALUE: last_value(past, windows.horizon, LEVELS)}
    why_no_seasonal = why_not_seasonal(windows.lookback, season)
    if why_no_seasonal is None and season is not None:
        naive[SEASONAL] = seasonal(past, windows.horizon, LEVELS, season)
    if taken := forecasts.keys() & naive.keys():
        raise InputError(f"{taken.pop()!r} is the name of a naive forecast: rename the candidate")
    forecasts |= naive

    scale = one_bar_change(past)  # (W,)
    is_scaled = np.isfinite(scale)
    scores: dict[str, Scores] = {}
    losses: dict[str, Array] = {}  # scaled pinball loss of each window that can be scaled
    for name, forecast in forecasts.items():
        if not (np.isfinite(forecast.point).all() and np.isfinite(forecast.quantiles).all()):
            raise TrainingDiverged(f"the forecasts of {name!r} are not finite", details={"forecaster": name})
        scores[name], losses[name] = _score(actual, forecast, scale)
    judged = next(iter(candidates))
    groups = None if windows.groups is None else windows.groups[is_scaled]
    return Evaluation(
        judged=judged,
        num_windows=len(windows),
        num_constant=int((~is_scaled).sum()),
        lookback=windows.lookback,
        horizon=windows.horizon,
        season=season,
        why_no_seasonal=why_no_seasonal,
        scores=scores,
        improvements={
            name: improvement(losses[judged], theirs, groups=groups, seed=seed)
            for name, theirs in losses.items()
            if name != judged and is_scaled.any()
        },
    )


def _score(actual: Array, forecast: CloseForecast, scale: Array) -> tuple[Scores, Array]:
    """Mean scores, and the scaled pinball loss of each window that can be scaled."""
    is_scaled = np.isfinite(scale)
    low, high = forecast.quantiles[:, 0], forecast.quantiles[:, -1]  # (W, H)
    errors, losses = mae(actual, forecast.point), pinball(actual, forecast.quantiles)
    widths = (high - low).mean(axis=1)

    def scaled(values: Array) -> Array:
        return values[is_scaled] / scale[is_scaled]

    def mean(values: Array) -> float:
        return float(values.mean()) if len(values) else math.nan

    return Scores(
        mae=mean(errors),
        mase=mean(scaled(errors)),
        pinball=mean(losses),
        pinball_scaled=mean(scaled(losses)),
        coverage_80=mean(coverage(actual, low, high)),
        width_80=mean(widths),
        width_80_scaled=mean(scaled(widths)),
    ), scaled(losses)


def _compared(other: str, by: Improvement) -> str:
    """One sentence: how much better or worse than ``other``, with the interval."""
    if math.isnan(by.low):
        few = f"fewer than {MIN_GROUPS} separate windows cannot show whether by chance"
        return f"{_size(by.mean)} than {other} on these windows; {few}."
    if by.outcome == "unclear":
        bounds = f"from {_size(by.low)} to {_size(by.high)}"
        return f"{_size(by.mean)} than {other}, perhaps by chance (95 % interval {bounds})."
    if math.isinf(by.mean):
        return f"WORSE than {other}, which makes no error here."
    low, high = sorted((abs(by.low), abs(by.high)))
    word = "better" if by.outcome == "better" else "WORSE"
    return f"{abs(by.mean):.1f} % {word} than {other} (95 % interval {low:.1f} to {high:.1f} %)."


def _size(percent: float) -> str:
    return f"{abs(percent):.1f} % {'better' if percent >= 0 else 'worse'}"


def _covered(share: float) -> str:
    low, high = GOOD_COVERAGE
    too = ": it is too narrow" if share < low else ": it is too wide" if share > high else ""
    return f"The 80 % interval held {100 * share:.1f} % of the closes{too}."


def _finite(numbers: Mapping[str, float]) -> dict[str, Any]:
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}
