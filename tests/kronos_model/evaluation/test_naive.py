import numpy as np
import pytest

from kronos_model.bars.synthetic import session_times
from kronos_model.evaluation.naive import (
    MIN_CHANGES,
    NUM_SAMPLES,
    infer_season,
    naive_samples,
    why_not_seasonal,
)


def test_a_season_that_the_lookback_does_not_show_is_left_out_with_a_reason():
    assert why_not_seasonal(48 + MIN_CHANGES, 48) is None
    reason = why_not_seasonal(48, 48)
    assert reason == "a season of 48 bars needs a lookback of at least 58 bars, not 48"
    assert why_not_seasonal(400, None) is not None
    assert why_not_seasonal(400, 1) is not None


def test_the_season_is_the_most_frequent_number_of_bars_a_day():
    times = session_times(48 * 6)
    assert infer_season(times) == 48
    assert infer_season(times[40:-40]) == 48  # days that are cut off do not count
    holes = np.delete(times, [60, 110])
    assert infer_season(holes) == 48  # as frequent as 47


def test_the_seasons_of_several_instruments_are_counted_together():
    hourly, five_minutes = session_times(4 * 30, 60), session_times(48 * 5)
    assert infer_season(hourly, five_minutes) == 4


def test_daily_bars_and_less_than_three_days_have_no_season():
    assert infer_season(np.arange("2025-01-01", "2025-03-01", dtype="datetime64[D]")) is None
    assert infer_season(session_times(96)) is None
    assert infer_season() is None


def test_naive_samples_have_the_textbook_points():
    num_windows, lookback, horizon = 80, 60, 6
    rng = np.random.default_rng(5)
    past = 100 * np.exp(0.01 * rng.normal(size=(num_windows, lookback)).cumsum(axis=1))
    samples = naive_samples(past, horizon, 5, seed=0)
    expected = {
        "last_value": past[:, -1:].repeat(horizon, axis=1),
        "drift": past[:, -1:] + (past[:, -1:] - past[:, :1]) / (lookback - 1) * np.arange(1, horizon + 1),
        "seasonal_naive": past[:, lookback - 5 + np.arange(horizon) % 5],
    }
    for name, point in expected.items():
        assert samples[name].shape == (num_windows, NUM_SAMPLES, horizon)
        spread = samples[name].std(axis=1) / np.sqrt(NUM_SAMPLES)
        assert (np.abs(samples[name].mean(axis=1) - point) < 5 * spread).all()
    growth = samples["random_walk"].std(axis=1).mean(axis=0)
    assert growth[-1] / growth[0] == pytest.approx(np.sqrt(horizon), rel=0.1)


def test_beyond_the_lookback_changes_grow_as_a_random_walks_do():
    past = 50 + np.random.default_rng(0).standard_normal((40, 40)).cumsum(axis=1)
    longest = 40 - MIN_CHANGES
    samples = naive_samples(past, 4 * longest, None, seed=0)["last_value"]
    growth = samples.std(axis=1).mean(axis=0)
    assert growth[-1] / growth[longest - 1] == pytest.approx(2, rel=0.1)


def test_a_lookback_of_two_bars_has_samples():
    assert np.isfinite(naive_samples(np.array([[5.0, 6.0]]), 2, None, seed=0)["drift"]).all()
