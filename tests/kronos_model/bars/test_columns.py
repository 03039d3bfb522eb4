import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kronos_model.bars.columns import COLUMNS, Scaling, repair_bars, time_features, to_bars
from kronos_model.errors import CandleError


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
