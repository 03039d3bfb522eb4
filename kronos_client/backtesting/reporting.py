"""What a backtest leaves in its folder: report.json, report.html and forecasts.parquet."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kronos_client.backtesting.page import write_page
from kronos_client.backtesting.plan import BacktestOptions, BacktestPlan
from kronos_client.backtesting.store import ForecastStore
from kronos_model.atomic_write import atomic_write, disk_errors
from kronos_model.bars.columns import CLOSE
from kronos_model.evaluation.naive import NUM_SAMPLES, infer_season, why_not_seasonal
from kronos_model.evaluation.report import WindowBatch, make_report
from kronos_model.evaluation.scores import path_quantiles
from kronos_model.evaluation.window_arrays import one_bar_change

BATCH_WINDOWS: Final = 128
"""The most windows that are scored at once."""
BATCH_CLOSES: Final = 2**22
"""The most sampled closes of one forecaster that are scored at once: 32 MiB in each array."""
LEVELS: Final = (0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95)


def write_report(
    plan: BacktestPlan,
    store: ForecastStore,
    names: Sequence[str],
    windows: Sequence[int],
    failed: Mapping[str, Any],
    folder: Path,
    on_batch: Callable[[], object],
) -> dict[str, Any]:
    """Score these windows, write the three files, and return the content of report.json."""
    season = infer_season(*(one.wall for one in plan.instruments))
    no_season = why_not_seasonal(plan.options.lookback, season)
    batches = _batches(plan, store, names, windows, on_batch)
    report = make_report(
        batches,
        plan.times.of(windows),
        season=None if no_season else season,
        seed=plan.options.seed,
    )
    report = {
        "asked": plan.options.as_dict(),
        "instruments": plan.describe_instruments(),
        "left_out": {
            "windows": len(plan.windows) - len(windows),
            "errors": dict(failed),
            "files": dict(plan.skipped),
        },
        "model_info": {name: store.about(f"model {index}", None) for index, name in enumerate(names)},
        "no_seasonal": no_season,
    } | report
    with disk_errors(folder), atomic_write(folder / "forecasts.parquet") as staging:
        _write_forecasts(staging, plan, store, names, windows, on_batch)
    with disk_errors(folder), atomic_write(folder / "report.html") as staging:
        write_page(staging, report, plan, store, names, windows)
    with disk_errors(folder), atomic_write(folder / "report.json") as staging:
        staging.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return report


def _batches(
    plan: BacktestPlan,
    store: ForecastStore,
    names: Sequence[str],
    windows: Sequence[int],
    on_batch: Callable[[], object],
) -> Iterator[WindowBatch]:
    lookback = plan.options.lookback
    for some in _in_batches(windows, plan.options):
        on_batch()
        closes = np.stack([plan.bars(window)[0][:, CLOSE] for window in some]).astype(np.float64)
        samples = {
            name: np.stack(list(store.read(model, some))).astype(np.float64)
            for model, name in enumerate(names)
        }
        yield WindowBatch(closes[:, :lookback], closes[:, lookback:], samples)


def _write_forecasts(
    path: Path,
    plan: BacktestPlan,
    store: ForecastStore,
    names: Sequence[str],
    windows: Sequence[int],
    on_batch: Callable[[], object],
) -> None:
    """One row for each model, window and forecast bar."""
    lookback, horizon = plan.options.lookback, plan.options.horizon
    quantile_names = [f"close_q{level}" for level in LEVELS]
    texts, numbers = ("model", "instrument", "timestamp"), ("scale", "actual", "mean", *quantile_names)
    schema = pa.schema(
        [*((name, pa.string()) for name in texts), ("window", pa.int32()), ("step", pa.int32())]
        + [(name, pa.float64()) for name in numbers]
    )
    with pq.ParquetWriter(path, schema) as writer:
        for model, name in enumerate(names):
            for some in _in_batches(windows, plan.options):
                on_batch()
                samples = np.stack(list(store.read(model, some))).astype(np.float64)  # (W, S, H)
                bars = [plan.bars(window) for window in some]
                past = np.stack([each[:lookback, CLOSE] for each, _ in bars]).astype(np.float64)
                columns: dict[str, Any] = {
                    "model": [name] * (len(some) * horizon),
                    "instrument": np.repeat([plan.instrument_of(window).name for window in some], horizon),
                    "timestamp": [str(time) for _, wall in bars for time in wall[lookback:]],
                    "window": np.repeat(np.asarray(some), horizon),
                    "step": np.tile(np.arange(1, horizon + 1), len(some)),
                    "scale": np.repeat(one_bar_change(past), horizon),
                    "actual": np.concatenate([each[lookback:, CLOSE] for each, _ in bars]),
                    "mean": samples.mean(axis=1).ravel(),
                }
                quantiles = path_quantiles(samples, LEVELS).reshape(len(LEVELS), -1)
                columns |= dict(zip(quantile_names, quantiles, strict=True))
                writer.write_table(pa.table(columns, schema=schema))


def _in_batches(windows: Sequence[int], options: BacktestOptions) -> Iterator[Sequence[int]]:
    each = max(options.samples, NUM_SAMPLES) * options.horizon
    number = min(BATCH_WINDOWS, max(1, BATCH_CLOSES // each))
    for first in range(0, len(windows), number):
        yield windows[first : first + number]
