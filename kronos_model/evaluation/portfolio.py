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
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kronos_model.evaluation.report import standard_error
from kronos_model.evaluation.scores import at_common_times
from kronos_model.evaluation.windows import Array

PORTFOLIOS: Final = {"momentum": "by momentum", "random": "at random"}
NUM_RANDOM: Final = 100
"""Portfolios at random, whose figures are averaged."""


class ReturnWindows(NamedTuple):
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
    groups = at_common_times(windows.begins)
    if not groups:
        return None
    periods = groups[:1]
    for group in groups[1:]:
        if windows.begins[group[0]] > windows.ends[periods[-1]].max():
            periods.append(group)

    def view(scores: Array) -> dict[str, Any]:
        """The portfolio by draws of scores, (D, W, H or 1)."""
        ic = np.stack([_rank_ic(scores[:, group], windows.actual[group]) for group in groups])  # (G, D, H)
        gross, turnover = _held(scores[..., -1], windows, periods, top)
        net = np.maximum((1 + gross) * (1 - cost_bps / 1e4 * turnover), 0) - 1  # (P, D)
        equity = np.cumprod(np.concatenate([np.ones((1, len(scores))), 1 + net]), axis=0)
        return {
            "rank_ic": ic.mean(axis=(0, 1)).tolist(),
            "rank_ic_t": [_t_value(series, lags) for series in ic.T],
            "hit_rate": float((gross > 0).mean()),
            "return_before_costs": float(gross.mean()),
            "return": float(net.mean()),
            "return_t": _t_value(net.T, 0),
            "turnover": float(turnover.mean()),
            "max_drawdown": float((1 - equity / np.maximum.accumulate(equity)).max(axis=0).mean()),
            "equity": np.round(equity.mean(axis=1), 6).tolist(),
        }

    times = [*(windows.begins[group[0]] for group in periods), windows.ends[periods[-1]].max()]
    return {
        "top": min(top, max(map(len, periods)) // 2),
        "cost_bps": cost_bps,
        "num_times": len(groups),
        "num_periods": len(periods),
        "equity_times": np.datetime_as_string(times, unit="s").tolist(),
        "models": {name: view(returns[None]) for name, returns in windows.predicted.items()},
        "naive": {
            "momentum": view(windows.momentum[None, :, None]),
            "random": view(np.random.default_rng(seed).random((NUM_RANDOM, len(windows.begins), 1))),
        },
    }


def portfolio_line(view: Mapping[str, Any], name: str) -> str:
    """A model's portfolio in one sentence."""
    each = (view["models"][name], *view["naive"].values())
    ours, momentum, at_random = (f"{100 * portfolio['return']:+.2f} %" for portfolio in each)
    return (
        f"Top {view['top']} less bottom {view['top']}, after costs of {view['cost_bps']:g} bps: {ours} on "
        f"average over {view['num_periods']} periods, by momentum {momentum}, at random {at_random}."
    )


def _rank_ic(scores: Array, actual: Array) -> Array:
    """Spearman's correlation of scores (D, N, H or 1) with returns (N, H): (D, H), 0 if all are equal."""
    from scipy.stats import rankdata  # takes as long as pandas

    ours, theirs = (rankdata(each, axis=-2) - (len(actual) + 1) / 2 for each in (scores, actual))
    size = np.sqrt((ours**2).sum(axis=-2) * (theirs**2).sum(axis=-2))
    return np.asarray((ours * theirs).sum(axis=-2) / np.where(size > 0, size, 1))


def _t_value(draws: Array, lags: int) -> float | None:
    """The t-value of the mean of a series (1, N); None for several draws, or too few values."""
    error = standard_error(draws[0], lags) if len(draws) == 1 else None
    return None if error is None else float(draws.mean() / error)


def _held(
    scores: Array, windows: ReturnWindows, periods: Sequence[NDArray[np.int64]], top: int
) -> tuple[Array, Array]:
    """Return before costs and turnover of each period and draw, (P, D), of portfolios by scores (D, W)."""
    held = np.zeros((len(scores), windows.instrument.max() + 1))  # weights after a period, (D, I)
    gross, turnover = np.empty((2, len(periods), len(scores)))
    for index, group in enumerate(periods):
        weights, returns = np.zeros_like(held), np.zeros(held.shape[1])
        instruments, number = windows.instrument[group], min(top, len(group) // 2)
        weights[:, instruments] = _share(scores[:, group], number) - _share(-scores[:, group], number)
        returns[instruments] = windows.actual[group, -1]
        turnover[index] = np.abs(weights - held).sum(axis=1)
        gross[index] = weights @ returns
        left = 1 + gross[index, :, None]
        held = np.where(left > 0, weights * (1 + returns) / np.where(left > 0, left, 1), 0)
    return gross, turnover


def _share(scores: Array, number: int) -> Array:
    """The equal parts of the instruments with the highest scores (D, N); equal scores share what is left."""
    edge = np.sort(scores, axis=1)[:, -number, None]
    above, level = scores > edge, scores == edge
    left = (number - above.sum(axis=1, keepdims=True)) / level.sum(axis=1, keepdims=True)
    return np.asarray((above + level * left) / number)
