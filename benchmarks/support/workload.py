"""Series to forecast, from synthetic candles, and the engine alone on them."""

import time
from collections.abc import Sequence
from functools import cache

import numpy as np

from kronos_model.bars.columns import time_features, to_bars
from kronos_model.bars.synthetic import candles
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.model_pair import load_pair

MAX_CONTEXT, MAX_SLOTS = 512, 64


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


def engine_s(model: str, tokenizer: str, num_jobs: int, lookback: int, horizon: int) -> float:
    """Seconds of the engine for the series of ``num_jobs`` jobs at once. The first call also loads."""
    return run_s(
        _engine(model, tokenizer), [series_request(seed, lookback, horizon) for seed in range(num_jobs)]
    )


@cache
def _engine(model: str, tokenizer: str) -> Engine:
    pair = load_pair(model, tokenizer)
    return build_engine(pair.model, pair.tokenizer, max_context=MAX_CONTEXT, max_slots=MAX_SLOTS)
