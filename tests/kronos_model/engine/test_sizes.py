"""Forecasts of prices of every size, through the engine."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.support.workload import series_request
from kronos_model.bars.columns import CLOSE, COLUMNS, VOLUME, FloatArray, to_bars
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.engine.runner import ModelRunner
from kronos_model.forecast import Event, Forecast, max_drawdown, total_return
from kronos_model.model_pair import load_pair
from tests.kronos_model.engine.conftest import MAX_CONTEXT

NewEngine = Callable[..., Engine]
ENGINES: dict[str, NewEngine] = {
    "float32": build_engine,
    "bfloat16": lambda *pair, **options: build_engine(*pair, dtype=torch.bfloat16, **options),
    "packed": lambda *pair, **options: Engine(ModelRunner(*pair, num_slots=8, packs=True, **options)),
}
EVENTS = [Event.parse(text) for text in ("close>last+0.5% at end", "low<=last-1% by 4", "high>=last by 2")]


def requests_of(
    sizes: list[float], lookback: int, horizon: int, sampling: SamplingParams
) -> list[SeriesRequest]:
    """One series with its prices, and so the amounts that follow from them, in several sizes."""
    series = series_request(3, lookback, horizon, sampling)
    given = {name: series.bars[:, index].astype(np.float64) for index, name in enumerate(COLUMNS[:-1])}
    units = {name: 1.0 if name == "volume" else 1.0 / given["close"][-1] for name in given}
    return [
        replace(
            series,
            bars=to_bars(
                {
                    name: values * (1.0 if name == "volume" else size) * units[name]
                    for name, values in given.items()
                }
            ),
        )
        for size in sizes
    ]


def paths_of(engine: Engine, requests: list[SeriesRequest]) -> list[FloatArray]:
    return [generation.paths for generation in engine.run(requests)]


@pytest.mark.parametrize("kind", ENGINES)
@given(
    exponents=st.lists(st.integers(-80, -35), min_size=2, max_size=2, unique=True),
    lookback=st.integers(2, 50),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_series_that_differ_by_a_power_of_two_have_equal_forecasts_up_to_it(
    pair, kind: str, exponents: list[int], lookback: int, seed: int
) -> None:
    engine = ENGINES[kind](*pair, max_context=MAX_CONTEXT)
    sizes = [2.0**exponent for exponent in exponents]
    requests = requests_of(sizes, lookback, 6, SamplingParams(sample_count=3, seed=seed))
    forecast, other = (Forecast(paths, seed) for paths in paths_of(engine, requests))
    factors = np.where(np.arange(len(COLUMNS)) == VOLUME, 1, sizes[0] / sizes[1])
    np.testing.assert_array_equal(forecast.paths, other.paths * factors)

    repaired, others = forecast.repaired(), other.repaired()
    np.testing.assert_array_equal(repaired.paths, others.paths * factors)
    np.testing.assert_array_equal(repaired.mean, others.mean * factors)
    np.testing.assert_array_equal(repaired.quantiles([0.1, 0.9]), others.quantiles([0.1, 0.9]) * factors)
    lasts = [float(request.bars[-1, CLOSE]) for request in requests]
    for event in EVENTS:
        happens = event.happens(repaired.paths, lasts[0])
        np.testing.assert_array_equal(happens, event.happens(others.paths, lasts[1]))
    for statistic in (total_return, max_drawdown):
        np.testing.assert_array_equal(statistic(repaired.paths, lasts[0]), statistic(others.paths, lasts[1]))


def test_the_bundled_models_band_is_the_same_at_every_size() -> None:
    bundled = load_pair("kronos-tiny", "kronos-tiny")
    engine = build_engine(bundled.model, bundled.tokenizer, max_context=512)
    sizes = [100.0, *(10.0**-exponent for exponent in range(6, 11)), 1e-36]
    sampling = SamplingParams(sample_count=60, seed=1)
    bands = []
    for size, paths in zip(sizes, paths_of(engine, requests_of(sizes, 128, 24, sampling)), strict=True):
        low, high = Forecast(paths, 1).quantiles([0.1, 0.9])[:, -1, CLOSE]
        bands.append((high - low) / size)
    assert bands == pytest.approx([bands[0]] * len(sizes), rel=0.05)
    assert bands[0] < 0.5
