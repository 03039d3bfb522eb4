"""Compares the bundled checkpoint with naive forecasts, on synthetic instruments that it has not seen."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from kronos_model.bars.columns import to_bars
from kronos_model.engine.build import build_engine
from kronos_model.engine.generation import SamplingParams
from kronos_model.evaluation.report import make_report, without_steps
from kronos_model.evaluation.windows import WindowArrays, WindowTimes
from kronos_model.finetuning.final_evaluation import MAX_SLOTS, window_batches
from kronos_model.model_pair import load_pair
from tools.kronos_tiny.market import market_candles

FIRST_INSTRUMENT: Final = 1_000_000
"""Instruments with this seed or a higher one are not trained on."""
NUM_BARS: Final = 640
"""Bars of each; a window is its last ones."""

NAME: Final = "kronos-tiny"
LOOKBACKS: Final = (64, 128, 416)
HORIZON: Final = 24
NUM_WINDOWS: Final = 60
SAMPLE_COUNT: Final = 30


def held_out_windows(seed: int, num_windows: int, lookback: int, pred_len: int) -> WindowArrays:
    """One window of each of ``num_windows`` instruments that no other seed has; the futures end alike."""
    bars, wall = [], []
    for index in range(num_windows):
        instrument = market_candles(FIRST_INSTRUMENT * (1 + seed) + index, NUM_BARS)
        series = instrument[NUM_BARS - lookback - pred_len :]
        bars.append(to_bars(series.columns))
        wall.append(np.array(series.timestamps, dtype="datetime64[s]"))
    return WindowArrays(np.stack(bars), np.stack(wall), lookback)


def compare_held_out(
    checkpoint: str | Path = NAME,
    *,
    seed: int = 0,
    num_windows: int = NUM_WINDOWS,
    lookbacks: Sequence[int] = LOOKBACKS,
    sample_count: int = SAMPLE_COUNT,
    top_p: float = 1.0,
) -> dict[str, Any]:
    """The report of each lookback on the seed's windows, forecast with that seed.

    All forecast the same bars, of one instrument for each window.
    """
    pair = load_pair(checkpoint)
    sampling = SamplingParams(top_p=top_p, sample_count=sample_count, seed=seed)
    engine = build_engine(pair.model, pair.tokenizer, max_context=pair.max_context, max_slots=MAX_SLOTS)
    each = np.arange(num_windows)  # the instruments are independent
    times = WindowTimes(each.astype("datetime64[D]"), each, lags=0)
    reports = {}
    for lookback in lookbacks:
        windows = held_out_windows(seed, num_windows, lookback, HORIZON)
        batches = window_batches({NAME: engine}, windows, sampling)
        reports[str(lookback)] = without_steps(make_report(batches, times, season=None, seed=seed))
    return reports


def summary(reports: Mapping[str, Any]) -> str:
    """The verdict at each lookback."""
    return "\n".join(
        line
        for lookback, report in reports.items()
        for line in (f"{lookback} bars of lookback:", *report["models"][NAME]["verdict"])
    )


def main() -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", nargs="?", default=NAME, help="bundled name or folder (%(default)s)")
    parser.add_argument("--windows", type=int, default=NUM_WINDOWS, help="(default: %(default)s)")
    parser.add_argument("--top-p", type=float, default=1.0, help="(default: %(default)s)")
    options = parser.parse_args()
    held_out = compare_held_out(options.checkpoint, num_windows=options.windows, top_p=options.top_p)
    sys.stdout.write(summary(held_out) + "\n")


if __name__ == "__main__":
    main()
