"""Candles that cannot be forecast from, refused before any tensor is made."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import (
    COLUMNS,
    HIGH,
    LOW,
    MAX_MAGNITUDE,
    PRICE_COLUMNS,
    check_price_columns,
    column_error,
)
from kronos_model.errors import CandleError

IMPOSSIBLE: Final = "IMPOSSIBLE_CANDLE"
SMALLEST_PRICE: Final = float(np.finfo(np.float32).tiny)
"""Prices above it are above zero as float32."""
LARGEST: Final = {"amount": MAX_MAGNITUDE**2}
"""The largest value of a column, if not ``MAX_MAGNITUDE``: an amount is a volume times a price."""


def check_candles(columns: Mapping[str, NDArray[Any]]) -> None:
    """Refuse columns (each (T,), numeric) that the model cannot use.

    The first defect is reported, with its column as ``field`` and its first row in ``details["row"]``. A high
    below open or close is no defect as long as it is not below the low: it is common in vendors' data and
    does no harm. ``impossible_warning`` names it.

    Raises CandleError: MISSING_COLUMN, UNKNOWN_COLUMN, LENGTH_MISMATCH (also if not one-dimensional),
    EMPTY_SERIES, NOT_FINITE, VALUE_TOO_LARGE, NON_POSITIVE_PRICE (also one that is zero as float32),
    HIGH_BELOW_LOW, NEGATIVE_VOLUME (also the amount), checked in this order, each over all columns.
    """
    check_shape(columns)
    table = np.array([columns[name] for name in COLUMNS if name in columns])  # (C, T)
    prices_fit = table[: len(PRICE_COLUMNS)].min() > SMALLEST_PRICE
    are_ordered = not np.count_nonzero(table[HIGH] < table[LOW])
    if prices_fit and are_ordered and table.min() >= 0 and table.max() <= MAX_MAGNITUDE:  # not if one is NaN
        return
    for code, name, at_fault, defect in defects_of(columns):
        if at_fault.any():
            row = int(np.argmax(at_fault))
            raise column_error(code, name, f", row {row}: {float(columns[name][row])!r} {defect}", row=row)


def defects_of(columns: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, str, NDArray[np.bool_], str]]:
    """The checks of single bars, in their order.

    Yields:
        The error's code, the column, whether each bar is at fault (T,), and the defect in words.
    """
    for name, values in columns.items():
        yield "NOT_FINITE", name, ~np.isfinite(values), "is not a finite number: fill or drop the bar"
    for name, values in columns.items():
        largest = LARGEST.get(name, MAX_MAGNITUDE)
        text = f"is beyond ±{largest:g}: give it in a larger unit"
        yield "VALUE_TOO_LARGE", name, np.abs(values) > largest, text
    for name in PRICE_COLUMNS:
        too_low = np.asarray(columns[name], dtype=np.float32) <= 0
        yield "NON_POSITIVE_PRICE", name, too_low, "is not a price above zero"
    below = np.asarray(columns["high"]) < np.asarray(columns["low"])
    yield "HIGH_BELOW_LOW", "high", below, "is below the low of the same bar"
    for name in COLUMNS[len(PRICE_COLUMNS) :]:
        if name in columns:
            yield "NEGATIVE_VOLUME", name, np.asarray(columns[name]) < 0, "is below zero"


def impossible_prices(
    columns: Mapping[str, NDArray[Any]],
) -> Iterator[tuple[str, str, NDArray[np.bool_], str]]:
    """Checks as in ``defects_of``: open and close outside low to high, common in vendors' data."""
    for name in ("open", "close"):
        yield IMPOSSIBLE, name, columns[name] > columns["high"], "is above the high of the same bar"
        yield IMPOSSIBLE, name, columns[name] < columns["low"], "is below the low of the same bar"


def impossible_warning(columns: Mapping[str, NDArray[Any]], times: Sequence[str]) -> str | None:
    """A warning that names the first bar whose open or close lies outside low to high."""
    opens, closes = columns["open"], columns["close"]
    is_odd = (np.maximum(opens, closes) > columns["high"]) | (np.minimum(opens, closes) < columns["low"])
    if not (num_odd := np.count_nonzero(is_odd)):
        return None
    found = [(np.flatnonzero(at_fault), name, text) for _, name, at_fault, text in impossible_prices(columns)]
    row, name, text = min((rows[0], name, text) for rows, name, text in found if len(rows))
    count = "1 bar has" if num_odd == 1 else f"{num_odd:,} bars have"
    first = f"at {times[row]}, {name} {columns[name][row]} {text}"
    return f"{count} an open or close outside low to high: {first}"


def check_shape(columns: Mapping[str, NDArray[Any]]) -> None:
    """The part of ``check_candles`` that reads no value: which columns there are, and their lengths."""
    check_price_columns(columns)
    num_bars = len(columns["open"]) if np.ndim(columns["open"]) == 1 else -1
    for name, values in columns.items():
        if name not in COLUMNS:
            raise column_error("UNKNOWN_COLUMN", name, f" is not known: the columns are {', '.join(COLUMNS)}")
        if np.ndim(values) != 1:
            raise column_error("LENGTH_MISMATCH", name, f" must have one dimension, not {np.ndim(values)}")
        if len(values) != num_bars:
            text = f" has {len(values)} values, but 'open' has {num_bars}: give one value a bar"
            raise column_error("LENGTH_MISMATCH", name, text, row=min(len(values), num_bars))
    if num_bars == 0:
        raise CandleError("the series has no bars: send some", code="EMPTY_SERIES", field="open")
