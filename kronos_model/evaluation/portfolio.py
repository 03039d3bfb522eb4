"""A portfolio's view of forecasts of several instruments at common times. No torch.

What is measured, and where its formula comes from:

- Rank IC: Spearman's correlation over instruments of predicted and actual returns; Grinold and Kahn, Active
  Portfolio Management, 2nd edition (2000), chapter 6. Its mean over times has a t-value by Newey and West.
- The portfolio holds, in equal parts, the k instruments with the highest predicted return, and is short of
  the k with the lowest, for the whole horizon; then it is made anew. Momentum ranks by the lookback's return
  (Jegadeesh and Titman, Returns to buying winners and selling losers, Journal of Finance 48, 1993).
- Turnover is the sum of absolute changes of weight, from those that prices have made of the last portfolio,
  and costs are in proportion to it: DeMiguel, Garlappi and Uppal, Optimal versus naive diversification,
  Review of Financial Studies 22 (2009). Buying the first portfolio counts, selling the last does not.
- Maximum drawdown: the largest loss from an earlier peak of the equity, as a share of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.evaluation.report import MIN_TIMES, standard_error
from kronos_model.evaluation.scores import MIN_INSTRUMENTS, finite_or_none
from kronos_model.evaluation.windows import Array

MOMENTUM: Final = "momentum"
RANDOM: Final = "random"
PORTFOLIO_TITLES: Final = {MOMENTUM: "by momentum", RANDOM: "at random"}
NUM_RANDOM: Final = 100
"""Portfolios at random, whose figures are averaged."""
MAX_POINTS: Final = 1000
"""The most points of an equity curve that are kept."""
NO_PORTFOLIO: Final = (
    f"fewer than {MIN_INSTRUMENTS} instruments have windows that begin at the same time: use --stride"
)


@dataclass(frozen=True, eq=False)
class ReturnWindows:
    """Returns over W windows, from the last close that is known.

    Attributes:
        predicted: by model, 1 to H bars ahead, (W, H).
        actual: (W, H).
        momentum: of the lookback, (W,).
        instrument: the instrument's index, (W,).
        begins, ends: the times of the first and the last forecast bar, (W,).
    """

    predicted: Mapping[str, Array]
    actual: Array
    momentum: Array
    instrument: NDArray[np.int32]
    begins: NDArray[np.datetime64]
    ends: NDArray[np.datetime64]


def portfolio_report(
    windows: ReturnWindows, *, top: int, cost_bps: float, lags: int, seed: int
) -> dict[str, Any] | None:
    """The portfolio of each model, by momentum, and at random; None without ``MIN_INSTRUMENTS`` at one time.

    Args:
        top: instruments on each side; at most half of those at a time.
        cost_bps: of each trade, in hundredths of a per cent of what is bought or sold.
        lags: as of ``WindowTimes``.
        seed: of the random portfolios.
    """
    is_known = np.isfinite([windows.actual, *windows.predicted.values()]).all(axis=(0, 2))
    order = np.flatnonzero(is_known)
    order = order[np.argsort(windows.begins[order], kind="stable")]
    groups = np.split(order, np.flatnonzero(np.diff(windows.begins[order])) + 1)
    groups = [group for group in groups if len(group) >= MIN_INSTRUMENTS]
    if not groups:
        return None
    num_windows, horizon = windows.actual.shape
    rng = np.random.default_rng(seed)
    at_random: NDArray[Any] = rng.random((NUM_RANDOM, num_windows, 1), dtype=np.float32)
    scores = {name: returns[None] for name, returns in windows.predicted.items()}  # (D, W, H or 1)
    scores |= {MOMENTUM: windows.momentum[None, :, None], RANDOM: at_random}
    periods = _one_after_the_other(windows, groups)
    shown = np.unique(np.linspace(0, len(periods), min(1 + len(periods), MAX_POINTS)).astype(int))
    at = np.array([*(windows.begins[group[0]] for group in periods), windows.ends[periods[-1]].max()])
    views = {}
    for name, each in scores.items():
        coefficients = np.stack([_rank_ic(each[:, group], windows.actual[group]) for group in groups])
        gross, turnover = _held(each[..., -1], windows, periods, top)
        net = np.maximum((1 + gross) * (1 - cost_bps / 1e4 * turnover), 0) - 1  # (P, D)
        equity = np.cumprod(np.concatenate([np.ones((1, len(each))), 1 + net]), axis=0)
        peaks = np.maximum.accumulate(equity, axis=0)
        views[name] = {
            **_over_times(coefficients, lags, horizon),
            "hit_rate": float((gross > 0).mean()),
            "return_before_costs": float(gross.mean()),
            "return": float(net.mean()),
            "return_t": None if name == RANDOM else _t_value(net[:, 0], 0),
            "turnover": float(turnover.mean()),
            "max_drawdown": float((1 - equity / peaks).max(axis=0).mean()),
            "equity": np.round(equity.mean(axis=1)[shown], 6).tolist(),
        }
    return {
        "top": min(top, max(map(len, periods)) // 2),
        "cost_bps": cost_bps,
        "num_times": len(groups),
        "num_periods": len(periods),
        "equity_times": np.datetime_as_string(at[shown], unit="s").tolist(),
        "models": {name: views[name] for name in windows.predicted},
        "naive": {name: views[name] for name in (MOMENTUM, RANDOM)},
    }


def portfolio_line(view: Mapping[str, Any], name: str) -> str:
    """A model's portfolio in one sentence."""
    ours, naive = view["models"][name], view["naive"]
    momentum, at_random = (100 * naive[other]["return"] for other in (MOMENTUM, RANDOM))
    t_value = "" if ours["return_t"] is None else f" (t {ours['return_t']:.1f})"
    return (
        f"Top {view['top']} less bottom {view['top']}, after costs of {view['cost_bps']:g} bps: "
        f"{100 * ours['return']:+.2f} % in each of {view['num_periods']} periods{t_value}, by momentum "
        f"{momentum:+.2f} %, at random {at_random:+.2f} %."
    )


def _one_after_the_other(
    windows: ReturnWindows, groups: Sequence[NDArray[np.int64]]
) -> list[NDArray[np.int64]]:
    """The times, from the first on, whose forecasts begin when those of the one before have ended."""
    chosen = [groups[0]]
    for group in groups[1:]:
        if windows.begins[group[0]] > windows.ends[chosen[-1]].max():
            chosen.append(group)
    return chosen


def _rank_ic(scores: Array, actual: Array) -> Array:
    """Spearman's correlation of each draw's scores (D, N, H or 1) with returns (N, H), as (D, H)."""
    from scipy.stats import rankdata  # takes as long as pandas

    ours, theirs = rankdata(scores, axis=1), rankdata(actual, axis=0)[None]
    ours, theirs = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (ours, theirs))
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.sqrt((ours**2).sum(axis=1) * (theirs**2).sum(axis=1))
        return np.asarray((ours * theirs).sum(axis=1) / size)


def _over_times(coefficients: Array, lags: int, horizon: int) -> dict[str, Any]:
    """``rank_ic`` by bar ahead, and its t-value, from those of each time and draw (G, D, H)."""
    means, t_values = [], []
    for step in range(horizon):
        values = coefficients[..., step]
        is_known = np.isfinite(values)
        means.append(finite_or_none(values[is_known].mean()) if is_known.any() else None)
        own = values[:, 0][is_known[:, 0]]
        overlapping = -(-lags * (step + 1) // horizon)  # of the first bars' returns, fewer
        t_values.append(_t_value(own, overlapping) if values.shape[1] == 1 else None)
    return {"rank_ic": means, "rank_ic_t": t_values}


def _t_value(series: Array, lags: int) -> float | None:
    if len(series) < MIN_TIMES or not np.ptp(series):
        return None
    return finite_or_none(series.mean() / standard_error(series, min(lags, len(series) // 2)))


def _held(
    scores: Array, windows: ReturnWindows, periods: Sequence[NDArray[np.int64]], top: int
) -> tuple[Array, Array]:
    """Return before costs and turnover of each period and draw, (P, D), of portfolios by scores (D, W)."""
    held = np.zeros((len(scores), windows.instrument.max() + 1))  # weights after a period, (D, I)
    gross, turnover = np.empty((2, len(periods), len(scores)))
    for index, group in enumerate(periods):
        weights = np.zeros_like(held)
        number = min(top, len(group) // 2)
        weights[:, windows.instrument[group]] = _share(scores[:, group], number) - _share(
            -scores[:, group], number
        )
        turnover[index] = np.abs(weights - held).sum(axis=1)
        returns = np.zeros(held.shape[1])
        returns[windows.instrument[group]] = windows.actual[group, -1]
        gross[index] = weights @ returns
        left = 1 + gross[index, :, None]
        held = np.where(left > 0, weights * (1 + returns) / np.where(left > 0, left, 1), 0)
    return gross, turnover


def _share(scores: Array, number: int) -> Array:
    """The equal parts of the instruments with the highest scores (D, N); equal scores share what is left."""
    edge = np.sort(scores, axis=1)[:, -number, None]
    above, level = scores > edge, scores == edge
    left = number - above.sum(axis=1, keepdims=True)
    return np.asarray((above + level * (left / level.sum(axis=1, keepdims=True))) / number)
