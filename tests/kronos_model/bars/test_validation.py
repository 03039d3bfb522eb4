from itertools import product
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


@pytest.mark.parametrize(
    ("change", "code", "field", "details"),
    [
        *(({name: None}, "MISSING_COLUMN", name, {}) for name in PRICE_COLUMNS),
        ({"vwap": np.ones(20)}, "UNKNOWN_COLUMN", "vwap", {}),
        *(
            ({name: np.ones(length)}, "LENGTH_MISMATCH", name, {"row": min(length, 20)})
            for name, length in product(COLUMNS[1:], (0, 19, 21))
        ),
        *(({"close": np.ones(shape)}, "LENGTH_MISMATCH", "close", {}) for shape in ((), (20, 1))),
        (dict.fromkeys(COLUMNS, np.array([])), "EMPTY_SERIES", "open", {}),
    ],
)
def test_columns_of_another_form_are_refused(
    columns: Columns, change: Columns, code: str, field: str, details: dict[str, int]
) -> None:
    changed = {name: values for name, values in (columns | change).items() if values is not None}
    error = refusal_of(changed)
    assert (error.code, error.field, error.details) == (code, field, details)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        *((name, value, "NOT_FINITE") for name, value in product(COLUMNS, (np.nan, np.inf, -np.inf))),
        *((name, value, "VALUE_TOO_LARGE") for name, value in product(COLUMNS, (1e39, 1.01e34, -1e300))),
        *((name, value, "NON_POSITIVE_PRICE") for name, value in product(PRICE_COLUMNS, (0.0, -0.01, 1e-60))),
        ("high", 1e-9, "HIGH_BELOW_LOW"),
        *((name, -1, "NEGATIVE_VOLUME") for name in ("volume", "amount")),
    ],
)
def test_a_value_that_the_model_cannot_use_is_refused_with_its_first_row(
    columns: Columns, name: str, value: float, code: str
) -> None:
    columns["volume"][0] = columns["amount"][0] = 0
    columns[name][[13, 17]] = value
    error = refusal_of(columns)
    assert (error.code, error.field, error.details) == (code, name, {"row": 13})
    assert name in error.message
    assert "row 13" in error.message


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
