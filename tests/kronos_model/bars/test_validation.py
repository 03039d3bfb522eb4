from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS, check_candles, defects_of
from kronos_model.errors import CandleError

Columns = dict[str, NDArray[Any]]


@pytest.fixture
def columns() -> Columns:
    close = 10 + np.sin(np.arange(20.0))
    prices = {"open": close, "high": close + 1, "low": close - 1, "close": close}
    return {name: values.copy() for name, values in prices.items()} | {
        "volume": np.full(20, 100.0),
        "amount": np.full(20, 1000.0),
    }


def refusal_of(columns: Columns) -> CandleError:
    with pytest.raises(CandleError) as caught:
        check_candles(columns)
    return caught.value


def test_valid_candles_pass(columns: Columns) -> None:
    check_candles(columns)
    check_candles({name: columns[name] for name in PRICE_COLUMNS})
    check_candles({name: values.astype(np.float32) for name, values in columns.items()})
    check_candles({name: np.arange(1, 5) for name in PRICE_COLUMNS})


@pytest.mark.parametrize("name", PRICE_COLUMNS)
def test_a_missing_price_column_is_named(columns: Columns, name: str) -> None:
    del columns[name]

    error = refusal_of(columns)

    assert (error.code, error.field) == ("MISSING_COLUMN", name)


def test_an_unknown_column_is_named(columns: Columns) -> None:
    error = refusal_of(columns | {"vwap": np.ones(20)})

    assert (error.code, error.field) == ("UNKNOWN_COLUMN", "vwap")


@pytest.mark.parametrize("name", COLUMNS[1:])
@pytest.mark.parametrize("length", [0, 19, 21])
def test_unequal_lengths_are_refused_with_the_row(columns: Columns, name: str, length: int) -> None:
    columns[name] = np.ones(length)

    error = refusal_of(columns)

    assert (error.code, error.field) == ("LENGTH_MISMATCH", name)
    assert error.details == {"row": min(length, 20)}


@pytest.mark.parametrize("shape", [(), (20, 1)])
def test_a_column_has_one_dimension(columns: Columns, shape: tuple[int, ...]) -> None:
    columns["close"] = np.ones(shape)

    error = refusal_of(columns)

    assert (error.code, error.field) == ("LENGTH_MISMATCH", "close")


def test_no_bars_are_refused() -> None:
    assert refusal_of({name: np.array([]) for name in COLUMNS}).code == "EMPTY_SERIES"


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(columns: Columns, name: str, value: float) -> None:
    columns[name][[13, 17]] = value

    error = refusal_of(columns)

    assert (error.code, error.field, error.details) == ("NOT_FINITE", name, {"row": 13})
    assert name in error.message
    assert "row 13" in error.message


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("value", [1e39, 1.01e34, -1e300])
def test_values_too_large_for_float32_sums_are_refused(columns: Columns, name: str, value: float) -> None:
    columns[name][4] = value

    error = refusal_of(columns)

    assert (error.code, error.field, error.details) == ("VALUE_TOO_LARGE", name, {"row": 4})


def test_only_amounts_may_be_as_large_as_the_largest_volume_times_the_largest_price(columns: Columns) -> None:
    columns["amount"][4] = 1e34
    check_candles(columns)
    for name in COLUMNS[:-1]:
        largest = columns[name].copy()
        largest[4] = 1.01e17
        assert refusal_of(columns | {name: largest}).field == name
    del columns["amount"]
    columns["volume"][6] = 9e16
    check_candles(columns)


def test_the_largest_values_survive_float32_statistics() -> None:
    values = np.full(8192, 9.9e16, dtype=np.float32)
    values[::2] = 1

    check_candles(dict.fromkeys(PRICE_COLUMNS, values))

    assert np.isfinite(values.std())


@pytest.mark.parametrize("name", PRICE_COLUMNS)
@pytest.mark.parametrize("value", [0.0, -0.01, 1e-60])
def test_prices_must_be_above_zero(columns: Columns, name: str, value: float) -> None:
    columns[name][7] = value

    error = refusal_of(columns)

    assert (error.code, error.field, error.details) == ("NON_POSITIVE_PRICE", name, {"row": 7})


def test_a_high_below_the_low_is_refused(columns: Columns) -> None:
    columns["high"][9] = columns["low"][9] - 0.01

    error = refusal_of(columns)

    assert (error.code, error.field, error.details) == ("HIGH_BELOW_LOW", "high", {"row": 9})


def test_a_close_outside_high_and_low_is_accepted(columns: Columns) -> None:
    columns["close"][9] = columns["high"][9] + 1
    columns["open"][9] = columns["low"][9] - 1

    check_candles(columns)


LARGE = [1e17, 1.1e17, 1e34, 1.1e34, 1e300, -1e300, np.inf, -np.inf, np.nan]
VALUES = st.sampled_from([1.0, 1.5, 0.0, -0.0, -1.0, 2.0**-150, 2.0**-149, 1e-300, *LARGE])


@given(rows=st.lists(st.tuples(*[st.just(1.0) | VALUES] * len(COLUMNS)), min_size=1, max_size=4))
def test_what_is_refused_is_the_first_defect(rows: list[tuple[float, ...]]) -> None:
    candles = dict(zip(COLUMNS, np.array(rows).T, strict=True))
    with np.errstate(over="ignore"):
        found = [(code, name) for code, name, at_fault, _ in defects_of(candles) if at_fault.any()]
    if found:
        error = refusal_of(candles)
        assert (error.code, error.field) == found[0]
    else:
        check_candles(candles)


@pytest.mark.parametrize("name", ["volume", "amount"])
def test_volume_and_amount_must_not_be_negative(columns: Columns, name: str) -> None:
    columns[name][0] = 0
    columns[name][11] = -1

    error = refusal_of(columns)

    assert (error.code, error.field, error.details) == ("NEGATIVE_VOLUME", name, {"row": 11})
