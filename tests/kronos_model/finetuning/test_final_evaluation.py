from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kronos_model import Kronos, KronosPredictor, KronosTokenizer
from kronos_model.bars.columns import CLOSE, COLUMNS, to_bars
from kronos_model.bars.synthetic import candles, session_times
from kronos_model.engine.build import build_engine
from kronos_model.engine.generation import SamplingParams
from kronos_model.errors import TrainingDiverged
from kronos_model.evaluation.windows import WindowArrays
from kronos_model.finetuning.final_evaluation import BATCH_WINDOWS, window_batches
from kronos_model.seeds import derive_series_seed

LOOKBACK, HORIZON = 60, 4
SAMPLING = SamplingParams(top_p=1.0, sample_count=6, seed=3)


@pytest.fixture(scope="module")
def pair() -> tuple[Kronos, KronosTokenizer]:
    return Kronos.from_pretrained("kronos-tiny"), KronosTokenizer.from_pretrained("kronos-tiny")


@pytest.fixture(scope="module")
def engine(pair):
    return build_engine(*pair, max_context=64)


def synthetic(num_windows: int = 3) -> WindowArrays:
    bars = [to_bars(candles(seed, LOOKBACK + HORIZON).columns) for seed in range(num_windows)]
    times = session_times(LOOKBACK + HORIZON)
    return WindowArrays(np.stack(bars), np.stack([times] * num_windows), LOOKBACK)


def closes(engine, windows: WindowArrays, **options) -> np.ndarray:
    batches = window_batches({"m": engine}, windows, SAMPLING, **options)
    return np.concatenate([batch.samples["m"] for batch in batches])


def test_a_windows_paths_are_those_of_the_predictor(pair, engine):
    windows = synthetic()
    samples = closes(engine, windows)
    predictor = KronosPredictor(*pair, device="cpu", max_context=64)
    times = pd.DatetimeIndex(windows.wall[0])
    for window in range(len(windows)):
        [expected] = predictor.forecast_batch(
            [pd.DataFrame(windows.bars[window, :LOOKBACK], columns=list(COLUMNS))],
            [times[:LOOKBACK]],
            [times[LOOKBACK:]],
            HORIZON,
            top_p=1.0,
            sample_count=6,
            seed=derive_series_seed(SAMPLING.seed, window),
        )
        np.testing.assert_allclose(samples[window], expected.paths[..., CLOSE], rtol=1e-5)


def test_forecasts_do_not_depend_on_the_batch(engine):
    windows = synthetic(BATCH_WINDOWS + 2)
    whole = closes(engine, windows)
    first = closes(engine, WindowArrays(windows.bars[:2], windows.wall[:2], LOOKBACK))
    np.testing.assert_allclose(whole[:2], first, rtol=1e-5)
    # The last windows are no repetition of the first: each has its own seed.
    same_bars = closes(engine, WindowArrays(windows.bars[[0] * 18], windows.wall, LOOKBACK))
    assert not np.array_equal(same_bars[0], same_bars[BATCH_WINDOWS])


def test_models_are_compared_on_the_same_windows_and_seed(engine):
    windows = synthetic(BATCH_WINDOWS + 2)
    whole, rest = window_batches({"a": engine, "b": engine}, windows, SAMPLING)
    assert (len(whole.actual), len(rest.actual)) == (BATCH_WINDOWS, 2)
    np.testing.assert_array_equal(whole.samples["a"], whole.samples["b"])
    np.testing.assert_array_equal(rest.actual, windows.future_closes[BATCH_WINDOWS:])
    np.testing.assert_array_equal(rest.past, windows.past_closes[BATCH_WINDOWS:])


def test_a_forecast_that_is_not_finite_is_refused():
    generation = SimpleNamespace(paths=np.full((2, HORIZON, 6), np.nan))
    diverged: Any = SimpleNamespace(run=lambda requests, on_progress: [generation for _ in requests])
    with pytest.raises(TrainingDiverged, match="'m' are not finite"):
        closes(diverged, synthetic())


def test_progress_is_that_of_all_batches(engine):
    seen = []
    closes(engine, synthetic(BATCH_WINDOWS + 2), on_progress=seen.append)
    assert min(seen) >= 0
    assert sum(seen) == (BATCH_WINDOWS + 2) * HORIZON * 6


def test_an_error_of_on_progress_ends_the_forecast_and_frees_the_engine(engine):
    class Stop(Exception):
        pass

    def stop(num_bars):
        raise Stop

    windows, seen = synthetic(), []
    with pytest.raises(Stop):
        closes(engine, windows, on_progress=stop)
    after = closes(engine, windows, on_progress=seen.append)
    assert sum(seen) == len(windows) * HORIZON * 6  # leftovers would count
    np.testing.assert_allclose(after, closes(engine, windows), rtol=1e-5)
