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
from kronos_client.backtesting.store import LEVELS, ForecastStore
from kronos_model.atomic_write import atomic_write, disk_errors
from kronos_model.bars.columns import CLOSE, COLUMNS, as_columns
from kronos_model.evaluation.calibration import references
from kronos_model.evaluation.naive import NUM_SAMPLES, infer_season, why_not_seasonal
from kronos_model.evaluation.report import WindowBatch, make_report

BATCH_WINDOWS: Final = 128
"""The most windows that are scored at once."""
BATCH_CLOSES: Final = 2**22
"""The most sampled closes of one forecaster that are scored at once: 32 MiB in each array."""


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
        "remarks": list(plan.remarks),
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
            name: np.stack(list(store.closes(model, some))).astype(np.float64)
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
    quantile_parts = [f"q{level}" for level in LEVELS]
    parts = ("anchor", "scale", "actual", *quantile_parts)
    schema = pa.schema(
        [(name, pa.string()) for name in ("model", "instrument", "timestamp")]
        + [(name, pa.int32()) for name in ("window", "step")]
        + [("close_mean", pa.float32())]
        + [(f"{column}_{part}", pa.float32()) for column in COLUMNS for part in parts]
    )
    with pq.ParquetWriter(path, schema) as writer:
        for model, name in enumerate(names):
            for some in _in_batches(windows, plan.options):
                on_batch()
                bars, wall = map(np.stack, zip(*map(plan.bars, some), strict=True))
                columns: dict[str, Any] = {
                    "model": [name] * (len(some) * horizon),
                    "instrument": np.repeat([plan.instrument_of(window).name for window in some], horizon),
                    "timestamp": wall[:, lookback:].astype(str).ravel(),
                    "window": np.repeat(np.asarray(some), horizon),
                    "step": np.tile(np.arange(1, horizon + 1), len(some)),
                    "close_mean": np.stack([paths.mean(axis=0) for paths in store.closes(model, some)]),
                }
                values = [np.repeat(one[:, None], horizon, 1) for one in references(bars[:, :lookback])]
                quantiles = np.stack(list(store.quantiles(model, some)), axis=1)  # (num_levels, W, H, 6)
                for part, of_part in zip(parts, [*values, bars[:, lookback:], *quantiles], strict=True):
                    columns |= {f"{column}_{part}": one for column, one in as_columns(of_part).items()}
                flat = {title: np.ravel(column) for title, column in columns.items()}
                writer.write_table(pa.table(flat, schema=schema))


def _in_batches(windows: Sequence[int], options: BacktestOptions) -> Iterator[Sequence[int]]:
    each = max(options.samples, NUM_SAMPLES) * options.horizon
    number = min(BATCH_WINDOWS, max(1, BATCH_CLOSES // each))
    for first in range(0, len(windows), number):
        yield windows[first : first + number]
