import json

import numpy as np
import pandas as pd
import pytest

from kronos_model import Kronos, KronosPredictor, KronosTokenizer
from kronos_model.bars.columns import CLOSE, COLUMNS, to_bars
from kronos_model.bars.synthetic import candles, session_times
from kronos_model.engine.generation import SamplingParams
from kronos_model.errors import InputError
from kronos_model.evaluation.comparison import LAST_VALUE, SEASONAL, evaluate
from kronos_model.evaluation.naive import infer_season
from kronos_model.evaluation.scores import LEVELS
from kronos_model.evaluation.window_arrays import WindowArrays
from kronos_model.finetuning.model_forecaster import BATCH_WINDOWS, ModelForecaster
from kronos_model.seeds import derive_series_seed

LOOKBACK, HORIZON = 60, 4
SAMPLING = SamplingParams(top_p=1.0, sample_count=6, seed=3)


@pytest.fixture(scope="module")
def pair() -> tuple[Kronos, KronosTokenizer]:
    return Kronos.from_pretrained("kronos-tiny"), KronosTokenizer.from_pretrained("kronos-tiny")


def forecaster(pair, **changes):
    return ModelForecaster(*pair, **{"max_context": 64, "sampling": SAMPLING} | changes)


def synthetic(num_windows: int = 3) -> WindowArrays:
    bars = [to_bars(candles(seed, LOOKBACK + HORIZON).columns) for seed in range(num_windows)]
    times = session_times(LOOKBACK + HORIZON)
    return WindowArrays(np.stack(bars), np.stack([times] * num_windows), LOOKBACK)


def test_a_windows_quantiles_are_those_of_the_predictor(pair):
    windows = synthetic()
    forecast = forecaster(pair)(windows, LEVELS)
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
        np.testing.assert_allclose(
            forecast.quantiles[window], expected.quantiles(LEVELS)[..., CLOSE], rtol=1e-5
        )
        np.testing.assert_allclose(
            forecast.point[window], np.median(expected.paths[..., CLOSE], 0), rtol=1e-5
        )


def test_forecasts_do_not_depend_on_the_batch(pair):
    windows = synthetic(BATCH_WINDOWS + 2)
    whole = forecaster(pair)(windows, LEVELS)
    first = forecaster(pair)(WindowArrays(windows.bars[:2], windows.wall[:2], LOOKBACK), LEVELS)
    np.testing.assert_allclose(whole.quantiles[:2], first.quantiles, rtol=1e-5)
    assert np.isfinite(whole.quantiles).all()
    # The last windows are no repetition of the first: each has its own seed.
    repeated = WindowArrays(windows.bars[[0] * 18], windows.wall, LOOKBACK)
    same_bars = forecaster(pair)(repeated, LEVELS).point
    assert not np.array_equal(same_bars[0], same_bars[BATCH_WINDOWS])


def test_a_forecast_does_not_depend_on_the_windows_future(pair):
    windows = synthetic()
    changed = windows.bars.copy()
    changed[:, LOOKBACK:] *= 3
    one, other = (
        forecaster(pair)(WindowArrays(bars, windows.wall, LOOKBACK), LEVELS)
        for bars in (windows.bars, changed)
    )
    np.testing.assert_array_equal(one.quantiles, other.quantiles)


def test_the_bundled_checkpoint_is_evaluated_the_same_for_the_same_seed(pair):
    windows = synthetic()
    season = infer_season(session_times(48 * 4))
    one, again = (evaluate({"kronos-tiny": forecaster(pair)}, windows, season=season) for _ in range(2))
    assert one.as_dict() == again.as_dict()
    assert list(one.scores) == ["kronos-tiny", LAST_VALUE, SEASONAL]
    assert one.scores["kronos-tiny"].pinball > 0
    assert json.dumps(one.as_dict(), allow_nan=False)
    other = forecaster(pair, sampling=SamplingParams(top_p=1.0, sample_count=6, seed=4))
    other_scores = evaluate({"kronos-tiny": other}, windows, season=season).scores
    assert other_scores["kronos-tiny"] != one.scores["kronos-tiny"]
    assert other_scores[LAST_VALUE] == one.scores[LAST_VALUE]


def test_progress_is_that_of_all_batches(pair):
    seen = []
    forecast = forecaster(pair, on_progress=seen.append)
    forecast(synthetic(BATCH_WINDOWS + 2), LEVELS)
    assert min(seen) >= 0
    assert sum(seen) == (BATCH_WINDOWS + 2) * HORIZON * 6


def test_an_error_of_on_progress_ends_the_forecast_and_frees_the_engine(pair):
    class Stop(Exception):
        pass

    def stop_once(num_bars):
        seen.append(num_bars)
        if len(seen) == 1:
            raise Stop

    seen: list[int] = []
    windows = synthetic()
    interrupted = forecaster(pair, on_progress=stop_once)
    with pytest.raises(Stop):
        interrupted(windows, LEVELS)
    after = interrupted(windows, LEVELS)
    assert sum(seen[1:]) == len(windows) * HORIZON * 6  # leftovers would count
    np.testing.assert_allclose(after.quantiles, forecaster(pair)(windows, LEVELS).quantiles, rtol=1e-5)


def test_a_horizon_beyond_the_context_is_refused(pair):
    with pytest.raises(InputError, match="max_context 3"):
        forecaster(pair, max_context=3)(synthetic(), LEVELS)
