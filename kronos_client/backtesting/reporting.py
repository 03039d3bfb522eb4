"""What a backtest leaves in its folder: report.json, report.html and forecasts.parquet."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kronos_client.backtesting.page import write_page
from kronos_client.backtesting.store import PARTS
from kronos_model.atomic_write import atomic_write, disk_errors
from kronos_model.bars.columns import CLOSE, as_columns
from kronos_model.evaluation.calibration import references
from kronos_model.evaluation.naive import NUM_SAMPLES, infer_season, why_not_seasonal
from kronos_model.evaluation.report import WindowBatch, make_report

if TYPE_CHECKING:
    from kronos_client.backtesting.run import BacktestRun

BATCH_WINDOWS: Final = 128
"""The most windows that are scored at once."""
BATCH_CLOSES: Final = 2**22
"""The most sampled closes of one forecaster that are scored at once: 32 MiB in each array."""


def write_report(run: "BacktestRun", on_batch: Callable[[], object]) -> dict[str, Any]:
    """Score the forecasts of a run, write the three files, and return the content of report.json."""
    plan, folder, names, windows = run.plan, run.folder, run.names(), run.common_windows
    season = infer_season(*(one.wall for one in plan.instruments))
    no_season = why_not_seasonal(plan.options.lookback, season)
    season = None if no_season else season
    scores = make_report(
        _scored(run, on_batch), plan.times.select(windows), season=season, seed=plan.options.seed
    )
    num_left_out = len(plan.windows) - len(windows)
    report = {
        "asked": plan.options.as_dict(),
        "instruments": plan.describe_instruments(),
        "left_out": {"windows": num_left_out, "errors": dict(run.failed), "files": dict(plan.skipped)},
        "remarks": list(plan.remarks),
        "model_info": {name: run.store.about(f"model {model}", None) for model, name in enumerate(names)},
        "no_seasonal": no_season,
    } | scores
    with disk_errors(folder), atomic_write(folder / "forecasts.parquet") as staging:
        tables = _tables(run, on_batch)
        first = next(tables)
        with pq.ParquetWriter(staging, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table)
    with disk_errors(folder), atomic_write(folder / "report.html") as staging:
        write_page(staging, report, run)
    with disk_errors(folder), atomic_write(folder / "report.json") as staging:
        staging.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return report


def _scored(run: "BacktestRun", on_batch: Callable[[], object]) -> Iterator[WindowBatch]:
    plan = run.plan
    for windows in _batches(run, on_batch):
        closes = np.stack([plan.window(window).bars[:, CLOSE] for window in windows]).astype(np.float64)
        past, actual = np.split(closes, [plan.options.lookback], axis=1)
        samples = {
            name: np.stack([*run.store.closes(model, windows)]).astype(np.float64)
            for model, name in enumerate(run.names())
        }
        yield WindowBatch(past, actual, samples)


def _tables(run: "BacktestRun", on_batch: Callable[[], object]) -> Iterator[pa.Table]:
    """One row for each model, window and forecast bar."""
    plan, lookback, horizon = run.plan, run.plan.options.lookback, run.plan.options.horizon
    for model, name in enumerate(run.names()):
        for windows in _batches(run, on_batch):
            shown = [plan.window(window) for window in windows]
            past, actual = np.split(np.stack([one.bars for one in shown]), [lookback], axis=1)
            columns: dict[str, Any] = {
                "model": np.full(actual.shape[:2], name),
                "instrument": np.repeat([one.name for one in shown], horizon),
                "timestamp": np.stack([one.wall[lookback:] for one in shown]).astype(str),
                "window": np.repeat(np.asarray(windows, np.int32), horizon),
                "step": np.tile(np.arange(1, horizon + 1, dtype=np.int32), len(windows)),
                "close_mean": np.stack([*run.store.closes(model, windows)]).mean(axis=1),
            }
            references_of_bars = (np.repeat(each[:, None], horizon, axis=1) for each in references(past))
            quantiles = np.stack([*run.store.quantiles(model, windows)], axis=1)
            parts = np.stack([*references_of_bars, actual, *quantiles]).astype(np.float32)  # (P, W, H, 6)
            for column, of_column in as_columns(parts).items():
                columns |= {f"{column}_{part}": one for part, one in zip(PARTS, of_column, strict=True)}
            yield pa.table({title: np.ravel(values) for title, values in columns.items()})


def _batches(run: "BacktestRun", on_batch: Callable[[], object]) -> Iterator[Sequence[int]]:
    """The windows, as many at once as memory has room for."""
    options, windows = run.plan.options, run.common_windows
    each = max(options.samples, NUM_SAMPLES) * options.horizon
    number = min(BATCH_WINDOWS, max(1, BATCH_CLOSES // each))
    for first in range(0, len(windows), number):
        on_batch()
        yield windows[first : first + number]
