"""Do adaptive intervals hold on real prices?

The model is the drift-free bootstrap of a lookback, which costs little and knows nothing of breaks. Each row
of the file is a tick of all its series: how earlier forecasts held changes the next intervals, as in a feed
with ``calibration="adaptive"``. Of the 80 % intervals, 1 bar ahead for each series and 12 ahead for all
together: the smallest and largest share that held over any 1,000 ticks, and the smallest over any 100; then
the loss of the quantiles, divided by that of the model's own.

    python -m benchmarks.adaptive CLOSES.csv [--lookback 128] [--paths 100]

The file has a column of times, then closes, a column a series.
"""

import argparse
from typing import Any

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

from benchmarks.support.harness import Table
from kronos_client.contract.results import SCORED_LEVELS
from kronos_client.feeds.adaptive import changes, clipped, errors, factors, widened
from kronos_client.feeds.scores import INTERVALS, STEP_SUMS
from kronos_model.evaluation.calibration import pinball_loss
from kronos_model.evaluation.naive import bootstrap_draws
from kronos_model.evaluation.scores import sample_quantiles
from kronos_model.evaluation.windows import Array

HORIZON = 12
MEDIAN = SCORED_LEVELS.index(0.5)


def model_quantiles(closes: Array, lookback: int, num_paths: int) -> Array:
    """The bootstrap's quantiles of each tick and series, (T, S, L, H), from closes (S, N)."""
    pasts = sliding_window_view(closes, lookback, axis=1)[:, :-HORIZON]  # (S, T, lookback)
    tables = []
    for tick in range(pasts.shape[1]):
        samples = next(bootstrap_draws(pasts[:, tick], num_paths, HORIZON, tick))
        tables.append(sample_quantiles(samples, SCORED_LEVELS).swapaxes(0, 1))
    return np.stack(tables)


def adapted(own_quantiles: Array, actual: Array) -> Array:
    """What a feed would have issued, from the model's own quantiles and closes (T, S, H) that came."""
    num_ticks, num_series = own_quantiles.shape[:2]
    own, shared = np.zeros((num_series, 3)), np.zeros((3, HORIZON))
    issued = np.empty_like(own_quantiles)
    for tick in range(num_ticks):
        steps = np.arange(min(tick, HORIZON))
        if len(steps):  # the newest bar was forecast 1 to 12 ticks ago
            came = actual[tick - 1 - steps, :, steps].T  # (S, steps)
            tables = issued[tick - 1 - steps, :, :, steps]  # (steps, S, L)
            sums = np.zeros((num_series, len(STEP_SUMS), HORIZON))
            sums[:, 0, steps] = 1
            for at, share in enumerate(INTERVALS):
                held = (came >= tables[..., at].T) & (came <= tables[..., -1 - at].T)
                sums[:, STEP_SUMS.index(f"inside_{share}"), steps] = held
            of_each, of_all = changes(errors(sums), num_series)
            own, shared = clipped(own + of_each), clipped(shared + of_all.sum(axis=0))
        by = factors(own, np.broadcast_to(shared, (num_series, *shared.shape)))
        for series in range(num_series):
            table = own_quantiles[tick, series]
            issued[tick, series] = widened(SCORED_LEVELS, table, table[MEDIAN], by[series])
    return issued


def loss(quantiles: Array, actual: Array, scale: Array) -> float:
    """The mean pinball loss of quantiles (T, S, L), each series in its own measure (S,)."""
    by_level = np.moveaxis(quantiles, -1, 0) / scale
    return float(pinball_loss(SCORED_LEVELS, by_level, actual / scale).mean())


def shares(held: Any, ticks: int) -> Array:
    """The share that held in each run of so many ticks, along the first axis."""
    sums = np.concatenate([np.zeros((1, *held.shape[1:])), np.cumsum(held, axis=0)])
    return np.asarray((sums[ticks:] - sums[:-ticks]) / ticks)


def main() -> None:
    """Compare both on one file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file")
    parser.add_argument("--lookback", type=int, default=128)
    parser.add_argument("--paths", type=int, default=100)
    given = parser.parse_args()
    closes = pd.read_csv(given.file, index_col=0).dropna().to_numpy(float).T
    own = model_quantiles(closes, given.lookback, given.paths)
    actual = sliding_window_view(closes[:, given.lookback :], HORIZON, axis=1).swapaxes(0, 1)[: len(own)]
    scale = np.abs(np.diff(closes, axis=1)).mean(axis=1)
    low = INTERVALS.index("80")
    table = Table("intervals:<10", "ahead:>6", "1,000 ticks:>15", "any 100:>8.2f", "loss:>6.3f")
    for name, issued in (("model", own), ("adaptive", adapted(own, actual))):
        inside = (issued[:, :, low] <= actual) & (actual <= issued[:, :, -1 - low])
        for step, held in ((1, inside[..., 0]), (HORIZON, inside[..., -1].mean(axis=1))):
            each, short = shares(held, 1000), shares(held, 100)
            both = [loss(each[..., step - 1], actual[..., step - 1], scale) for each in (issued, own)]
            span = f"{each.min():.3f} to {each.max():.3f}"
            table.row(name, step, span, short.min(), both[0] / both[1])


if __name__ == "__main__":
    main()
