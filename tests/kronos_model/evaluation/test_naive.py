import numpy as np
import pytest

from kronos_model.bars.synthetic import session_times
from kronos_model.evaluation.naive import MIN_CHANGES, infer_season, last_value, seasonal, why_not_seasonal
from kronos_model.evaluation.scores import LEVELS


def walks(num_windows: int = 3, num_bars: int = 60, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 50 + rng.standard_normal((num_windows, num_bars)).cumsum(axis=1)


def test_the_last_value_is_repeated_with_the_lookbacks_own_changes_around_it():
    closes = np.array([[1.0, 2.0, 4.0, 7.0, 11.0, 16.0, 22.0, 29.0, 37.0, 46.0, 56.0, 67.0, 79.0]])  # 13 bars
    forecast = last_value(closes, 2, [0.0, 0.5, 1.0])
    assert forecast.point.tolist() == [[79, 79]]
    # Changes of one bar are 1…12; of two bars 3, 5, …, 23.
    assert forecast.quantiles.tolist() == [[[79 + 1, 79 + 3], [79 + 6.5, 79 + 13], [79 + 12, 79 + 23]]]


def test_the_seasonal_forecast_repeats_the_last_season_by_hand():
    closes = np.arange(20.0)[None] + np.array([0, 10, 0] * 7)[None, :20]
    forecast = seasonal(closes, 7, [0.5], season=3)
    last_season = closes[0, -3:].tolist()
    assert forecast.point[0].tolist() == [*last_season, *last_season, last_season[0]]
    # Around it lie the changes over as many bars, as around the last value.
    around_the_last = last_value(closes, 7, [0.5])
    np.testing.assert_array_equal(
        forecast.quantiles[:, 0] - forecast.point, around_the_last.quantiles[:, 0] - closes[:, -1:]
    )


def test_a_periodic_series_is_forecast_without_error():
    period = np.array([3.0, 1.0, 4.0, 1.0, 5.0])
    series = np.tile(period, 12)[None]
    forecast = seasonal(series[:, :43], 17, LEVELS, season=5)
    np.testing.assert_array_equal(forecast.point, series[:, 43:])
    # Over whole periods nothing changed.
    np.testing.assert_array_equal(forecast.quantiles[0, :, 4], np.repeat(series[0, 47], len(LEVELS)))


@pytest.mark.parametrize("naive", [last_value, lambda *args: seasonal(*args, season=8)])
def test_many_windows_equal_each_alone(naive):
    closes = walks()
    together = naive(closes, 12, LEVELS)
    for window in range(len(closes)):
        alone = naive(closes[window : window + 1], 12, LEVELS)
        np.testing.assert_array_equal(together.point[window], alone.point[0])
        np.testing.assert_array_equal(together.quantiles[window], alone.quantiles[0])


@pytest.mark.parametrize("naive", [last_value, lambda *args: seasonal(*args, season=8)])
def test_quantiles_rise_with_their_level(naive):
    quantiles = naive(walks(), 70, LEVELS).quantiles
    assert quantiles.shape == (3, len(LEVELS), 70)
    assert (np.diff(quantiles, axis=1) >= 0).all()


def test_beyond_the_lookback_quantiles_grow_as_a_random_walks_do():
    closes = walks(num_bars=40)
    longest = 40 - MIN_CHANGES
    spread = last_value(closes, 4 * longest, [0.1]).quantiles[:, 0] - closes[:, -1:]
    exact = np.quantile(closes[:, longest:] - closes[:, :-longest], 0.1, axis=1)
    np.testing.assert_allclose(spread[:, longest - 1], exact)
    np.testing.assert_allclose(spread[:, 4 * longest - 1], 2 * exact)


def test_a_lookback_of_two_bars_has_one_change_and_one_of_one_bar_has_none():
    assert last_value(np.array([[5.0, 6.0]]), 1, [0.1, 0.9]).quantiles.tolist() == [[[7], [7]]]
    with pytest.raises(ValueError, match="at least 2 bars"):
        last_value(np.array([[5.0]]), 1, [0.5])


def test_a_season_that_the_lookback_does_not_show_is_left_out_with_a_reason():
    assert why_not_seasonal(48 + MIN_CHANGES, 48) is None
    reason = why_not_seasonal(48, 48)
    assert reason == "a season of 48 bars needs a lookback of at least 58 bars, not 48"
    with pytest.raises(ValueError, match=reason):
        seasonal(walks(num_bars=48), 3, LEVELS, season=48)
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
