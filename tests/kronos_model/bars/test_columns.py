import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kronos_model.bars.columns import COLUMNS, Scaling, repair_bars, time_features, to_bars
from kronos_model.errors import CandleError
from kronos_model.forecast import Forecast, path_quantiles


def prices(bars: int = 3) -> dict[str, np.ndarray]:
    return {name: np.arange(1.0, bars + 1) + index for index, name in enumerate(COLUMNS[:4])}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [[0, 0]] * 3),
        ({"volume": [10.0, 0.0, 2.0]}, [[10, 10 * 2.5], [0, 0], [2, 2 * 4.5]]),  # times the mean price
        ({"amount": [7.0, 8.0, 9.0]}, [[0, 7], [0, 8], [0, 9]]),
    ],
)
def test_missing_volume_and_amount_are_filled_in(given, expected):
    columns = prices() | {name: np.array(values) for name, values in given.items()}
    assert to_bars(columns)[:, 4:].tolist() == expected


def test_a_missing_price_column_is_named():
    with pytest.raises(CandleError, match="'low'") as refused:
        to_bars({name: values for name, values in prices().items() if name != "low"})
    assert (refused.value.code, refused.value.field) == ("MISSING_COLUMN", "low")


def test_undo_reverses_scaling():
    bars = to_bars(prices(50) | {"volume": np.full(50, 3.0)})
    scaling = Scaling.fit(bars)
    np.testing.assert_allclose(scaling.undo(scaling.apply(bars, clip=5)), bars, rtol=1e-6)


def test_outliers_are_clipped():
    bars = to_bars({name: np.append(np.zeros(999), 1e6) for name in COLUMNS})
    assert Scaling.fit(bars).apply(bars, clip=5).max() == 5


@given(st.datetimes())
def test_time_features_are_those_of_pandas(moment):
    time = pd.Timestamp(moment).as_unit("us")
    expected = [time.minute, time.hour, time.weekday(), time.day, time.month]
    assert time_features(np.array([time.to_datetime64()])).tolist() == [expected]


@given(hnp.arrays(np.float32, (2, 3, 6), elements=st.floats(-1e6, 1e6, width=32)))
def test_repaired_bars_are_possible_and_a_second_repair_changes_nothing(bars):
    repaired = repair_bars(bars)
    open_, high, low, close, volume, amount = np.moveaxis(repaired, -1, 0)
    assert (high >= np.maximum(open_, close)).all()
    assert (low <= np.minimum(open_, close)).all()
    assert (volume >= 0).all()
    assert (amount >= 0).all()
    assert np.array_equal(repaired[..., [0, 3]], bars[..., [0, 3]])
    assert np.array_equal(repair_bars(repaired), repaired)


def test_paths_are_repaired_before_they_are_summarised():
    # One path closes above its high; the mean of the repaired paths is not the repaired mean.
    paths = np.array([[[1, 1, 1, 3, 0, 0]], [[3, 4, 3, 3, 0, 0]]], dtype=np.float32)
    repaired = Forecast(paths, seed=0).repaired()
    assert repaired.mean[0, 1] == pytest.approx((3 + 4) / 2)
    assert repaired.quantiles([1.0])[0, 0, 1] == 4


def test_quantiles_and_mean_are_taken_over_the_paths():
    paths = np.arange(11, dtype=np.float32)[:, None, None].repeat(6, axis=2)
    forecast = Forecast(paths, seed=0)
    assert forecast.mean.shape == (1, 6)
    assert forecast.mean[0, 0] == 5
    assert forecast.quantiles([0.1, 0.5, 0.9])[:, 0, 3].tolist() == pytest.approx([0.2, 5, 9.8])
    assert forecast.quantiles([0.01, 0.99])[:, 0, 3].tolist() == [0, 10]


@pytest.mark.parametrize("num_paths", [9, 30])
def test_an_interval_holds_one_more_path_as_often_as_its_levels_say(num_paths):
    draws = np.random.default_rng(0).normal(size=(num_paths + 1, 50_000, 6)).astype(np.float32)
    low, high = Forecast(draws[1:], seed=0).quantiles([0.1, 0.9])
    assert ((low <= draws[0]) & (draws[0] <= high)).mean() == pytest.approx(0.8, abs=0.005)


@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(2, 40), st.just(3)), elements=st.floats(-1e6, 1e6, width=32)
    ),
    st.lists(st.floats(0.001, 0.999), max_size=4),
)
def test_quantiles_are_those_of_numpy(paths, levels):
    expected = np.quantile(paths, levels, axis=0, method="weibull")
    np.testing.assert_array_equal(path_quantiles(paths, levels), expected)


def test_every_quantile_of_one_path_is_that_path():
    path = np.random.default_rng(1).normal(size=(1, 4, 6)).astype(np.float32)
    quantiles = Forecast(path, seed=1).quantiles([0.1, 0.9])
    assert quantiles.dtype == np.float64
    np.testing.assert_array_equal(quantiles, np.quantile(path.astype(np.float64), [0.1, 0.9], axis=0))
