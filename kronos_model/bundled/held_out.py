"""Compares the bundled checkpoint with naive forecasts, on synthetic instruments that it has not seen."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from kronos_model.bars.columns import to_bars
from kronos_model.bars.synthetic import candles, session_minutes
from kronos_model.checkpoints.source import read_metadata
from kronos_model.engine.generation import SamplingParams
from kronos_model.evaluation.comparison import LAST_VALUE, NAMES, SEASONAL, Evaluation, evaluate
from kronos_model.evaluation.naive import CloseForecast
from kronos_model.evaluation.scores import LEVELS
from kronos_model.evaluation.window_arrays import WindowArrays
from kronos_model.finetuning.model_forecaster import ModelForecaster
from kronos_model.model_pair import load_pair

FIRST_INSTRUMENT: Final = 1_000_000
"""Instruments with this seed or a higher one are not trained on."""
INSTRUMENTS_PER_SEED: Final = 10_000

SEASON: Final = len(session_minutes(5))
BARS_TO_CHOOSE_FROM: Final = 260 * SEASON
"""A year of bars; a window starts anywhere in it."""
SAMPLE_COUNT: Final = 64
NAME: Final = "kronos-tiny"


@dataclass(frozen=True)
class HeldOut:
    """The comparison over the windows of all seeds, and each seed's improvement over each naive forecast.

    Each window has an instrument of its own, so the intervals are over independent series. The improvements
    are in per cent of the pinball loss.
    """

    pooled: Evaluation
    by_seed: dict[str, list[float]]

    def summary(self) -> str:
        lines = self.pooled.verdict()
        for name, percents in self.by_seed.items():
            numbers = ", ".join(f"{percent:.1f}" for percent in percents)
            lines.append(f"Better than {NAMES[name]}, each seed by itself: {numbers} %.")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        return {**self.pooled.as_dict(), "improvement_percent_by_seed": self.by_seed}


def held_out_windows(seed: int, num_windows: int, lookback: int, pred_len: int) -> WindowArrays:
    """One window of each of ``num_windows`` instruments that no other seed has; half of them revert."""
    rng = np.random.default_rng(seed)
    window = lookback + pred_len
    bars, wall = [], []
    for index in range(num_windows):
        first = int(rng.integers(BARS_TO_CHOOSE_FROM))
        series = candles(FIRST_INSTRUMENT + seed * INSTRUMENTS_PER_SEED + index, first + window)[first:]
        bars.append(to_bars(series.columns))
        wall.append(np.array(series.timestamps, dtype="datetime64[s]"))
    return WindowArrays(np.stack(bars), np.stack(wall), lookback)


def compare_held_out(
    checkpoint: str | Path = NAME,
    *,
    seeds: Sequence[int] = range(8),
    windows_per_seed: int = 64,
    sample_count: int = SAMPLE_COUNT,
    top_p: float = 1.0,
) -> HeldOut:
    """Forecast each seed's windows with that seed, and compare the forecasts with naive ones."""
    metadata = read_metadata(checkpoint)
    pair = load_pair(checkpoint)
    lookback, pred_len = int(metadata["lookback"]), int(metadata["pred_len"])
    parts, forecasts = [], []
    for seed in seeds:
        forecaster = ModelForecaster(
            pair.model,
            pair.tokenizer,
            max_context=pair.max_context,
            sampling=SamplingParams(top_p=top_p, sample_count=sample_count, seed=seed),
        )
        parts.append(held_out_windows(seed, windows_per_seed, lookback, pred_len))
        forecasts.append(forecaster(parts[-1], LEVELS))
    by_seed = [_scored(part, forecast) for part, forecast in zip(parts, forecasts, strict=True)]
    bars, wall = (np.concatenate([getattr(part, name) for part in parts]) for name in ("bars", "wall"))
    point, quantiles = (
        np.concatenate([getattr(forecast, name) for forecast in forecasts]) for name in ("point", "quantiles")
    )
    pooled = _scored(WindowArrays(bars, wall, lookback), CloseForecast(point, quantiles))
    names = (LAST_VALUE, SEASONAL)
    return HeldOut(pooled, {name: [one.improvements[name].mean for one in by_seed] for name in names})


def _scored(windows: WindowArrays, forecast: CloseForecast) -> Evaluation:
    return evaluate({NAME: lambda *_: forecast}, windows, season=SEASON)


def main() -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", nargs="?", default=NAME, help="bundled name or folder (%(default)s)")
    parser.add_argument("--seeds", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--windows", type=int, default=64, help="windows a seed (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=SAMPLE_COUNT, help="paths (default: %(default)s)")
    parser.add_argument("--top-p", type=float, default=1.0, help="(default: %(default)s)")
    options = parser.parse_args()
    held_out = compare_held_out(
        options.checkpoint,
        seeds=range(options.seeds),
        windows_per_seed=options.windows,
        sample_count=options.samples,
        top_p=options.top_p,
    )
    sys.stdout.write(held_out.summary() + "\n")


if __name__ == "__main__":
    main()
