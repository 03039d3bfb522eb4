"""Candles that cannot be forecast from, refused before any tensor is made."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS, check_price_columns
from kronos_model.errors import CandleError

MAX_MAGNITUDE: Final = 1e17
"""Beyond it the sum of squares over a long lookback, which scaling needs, leaves float32's range."""


def check_candles(columns: Mapping[str, NDArray[Any]]) -> None:
    """Refuse columns (each (T,), numeric) that the model cannot be given.

    The checks run in the order below, each over all columns; the first defect found is reported, with its
    column as ``field`` and its first row in ``details["row"]``. That the high is not the bar's greatest value
    is no defect as long as it is not below the low: vendors' data is full of it, and it does no harm.

    Raises CandleError with one of the codes
        MISSING_COLUMN      a price column is not there
        UNKNOWN_COLUMN      a column that the model does not have
        LENGTH_MISMATCH     columns of unequal length, or not one-dimensional
        EMPTY_SERIES        no bars
        NOT_FINITE          NaN or infinite
        VALUE_TOO_LARGE     beyond ±1e17, where float32 sums overflow
        NON_POSITIVE_PRICE  a price of zero or below, also one that is zero as float32
        HIGH_BELOW_LOW      a high below the low
        NEGATIVE_VOLUME     volume or amount below zero
    """
    _check_shape(columns)
    for name, values in columns.items():
        _refuse(
            ~np.isfinite(values), values, "NOT_FINITE", name, "is not a finite number: fill or drop the bar"
        )
    for name, values in columns.items():
        _refuse(
            np.abs(values) > MAX_MAGNITUDE,
            values,
            "VALUE_TOO_LARGE",
            name,
            f"is beyond ±{MAX_MAGNITUDE:g}: give it in a larger unit",
        )
    for name in PRICE_COLUMNS:
        too_low = np.asarray(columns[name], dtype=np.float32) <= 0
        _refuse(too_low, columns[name], "NON_POSITIVE_PRICE", name, "is not a price above zero")
    below = np.asarray(columns["high"]) < np.asarray(columns["low"])
    _refuse(below, columns["high"], "HIGH_BELOW_LOW", "high", "is below the low of the same bar")
    for name in COLUMNS[len(PRICE_COLUMNS) :]:
        if name in columns:
            values = columns[name]
            _refuse(np.asarray(values) < 0, values, "NEGATIVE_VOLUME", name, "is below zero")
    _check_derived_amount(columns)


def _check_shape(columns: Mapping[str, NDArray[Any]]) -> None:
    check_price_columns(columns)
    num_bars = len(columns["open"]) if np.ndim(columns["open"]) == 1 else -1
    for name, values in columns.items():
        if name not in COLUMNS:
            raise CandleError(
                f"column {name!r} is not known; there are {', '.join(COLUMNS)}",
                code="UNKNOWN_COLUMN",
                field=name,
            )
        if np.ndim(values) != 1:
            raise CandleError(
                f"column {name!r} must have one dimension, not {np.ndim(values)}",
                code="LENGTH_MISMATCH",
                field=name,
            )
        if len(values) != num_bars:
            raise CandleError(
                f"column {name!r} has {len(values)} values, but 'open' has {num_bars}: give one value a bar",
                code="LENGTH_MISMATCH",
                field=name,
                details={"row": min(len(values), num_bars)},
            )
    if num_bars == 0:
        raise CandleError("the series has no bars: give a lookback", code="EMPTY_SERIES", field="open")


def _check_derived_amount(columns: Mapping[str, NDArray[Any]]) -> None:
    if "volume" not in columns or "amount" in columns:
        return
    amount = columns["volume"] * np.mean([columns[name] for name in PRICE_COLUMNS], axis=0)
    _refuse(
        amount > MAX_MAGNITUDE,
        columns["volume"],
        "VALUE_TOO_LARGE",
        "volume",
        f"times the price is beyond {MAX_MAGNITUDE:g}: give volume in a larger unit, or the amount as well",
    )


def _refuse(at_fault: NDArray[np.bool_], values: NDArray[Any], code: str, field: str, defect: str) -> None:
    if not at_fault.any():
        return
    row = int(np.argmax(at_fault))
    raise CandleError(
        f"column {field!r}, row {row}: {float(values[row])!r} {defect}",
        code=code,
        field=field,
        details={"row": row},
    )
