"""Series to forecast, from synthetic candles."""

import time
from collections.abc import Sequence

import numpy as np

from kronos_model.bars.columns import time_features, to_bars
from kronos_model.bars.synthetic import candles
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams, SeriesRequest


def run_s(engine: Engine, requests: Sequence[SeriesRequest]) -> float:
    """Seconds from submitting all series at once to the end of the last one."""
    start = time.perf_counter()
    engine.run(requests)
    return time.perf_counter() - start


def series_request(
    seed: int, lookback: int, horizon: int, sampling: SamplingParams | None = None
) -> SeriesRequest:
    """Instrument ``seed``: its first ``lookback`` bars, and ``horizon`` bars to forecast."""
    series = candles(seed, lookback + horizon)
    stamps = time_features(np.array(series.timestamps, dtype="datetime64[s]"))
    return SeriesRequest(
        bars=to_bars(series[:lookback].columns),
        stamps=stamps[:lookback],
        future_stamps=stamps[lookback:],
        sampling=sampling or SamplingParams(seed=seed),
    )
