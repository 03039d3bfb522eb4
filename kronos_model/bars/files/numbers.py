"""Cells of text to numbers, whatever their decimal sign."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kronos_model.errors import CandleFileError

DECIMAL: Final = "decimal"
_SPACES: Final = "'’ \u00a0\u202f"
"""Signs that only separate thousands."""


def read_numbers(
    columns: Mapping[str, pa.ChunkedArray], separator: str | None, decimal: str | None
) -> dict[str, NDArray[np.float64]]:
    """The numbers of text columns, NaN if a cell is none.

    The decimal sign is the same in all columns: the one with which more cells are numbers. If that decides
    nothing, as ``1,234`` is a number with both, it is a comma if semicolons separate the cells.

    Raises:
        CandleFileError: The decimal sign cannot be found.
    """
    try:
        return {name: _as_floats(column) for name, column in columns.items()}
    except pa.ArrowInvalid:  # not all are plain numbers: look at each, which takes several times as long
        pass
    sign = decimal or _decimal_of(columns, separator)
    return {name: _read(column, sign) for name, column in columns.items()}


def _decimal_of(columns: Mapping[str, pa.ChunkedArray], separator: str | None) -> str:
    fits = partial(_count, columns)
    num_dots, num_commas = fits(_number(".")), fits(_number(","))
    if num_dots != num_commas:
        return "." if num_dots > num_commas else ","
    if not fits(","):
        return "."
    if separator in (";", ","):
        return "," if separator == ";" else "."
    text = "numbers such as 1,234, whose comma may separate decimals or thousands: give the decimal sign"
    raise CandleFileError(text, field=DECIMAL)


def _count(columns: Mapping[str, pa.ChunkedArray], pattern: str) -> int:
    """The cells that match."""
    matches = (pc.match_substring_regex(column, pattern) for column in columns.values())
    return sum(pc.sum(each).as_py() or 0 for each in matches)


def _number(decimal: str) -> str:
    sign, group = re.escape(decimal), f"[{_SPACES}{'.' if decimal == ',' else ','}]"
    whole = f"(?:[0-9]+|[0-9]{{1,3}}(?:{group}[0-9]{{3}})+)"
    return f"^[+-]?(?:{whole}(?:{sign}[0-9]*)?|{sign}[0-9]+)(?:[eE][+-]?[0-9]+)?$"


def _read(column: pa.ChunkedArray, decimal: str) -> NDArray[np.float64]:
    is_number = pc.match_substring_regex(column, _number(decimal))
    texts = pc.if_else(is_number, column, pa.scalar(None, column.type))
    texts = pc.replace_substring_regex(texts, f"[{_SPACES}{'.' if decimal == ',' else ','}]", "")
    return _as_floats(pc.replace_substring(texts, decimal, "."))


def _as_floats(column: Any) -> NDArray[np.float64]:
    return np.asarray(column.cast(pa.float64()).to_numpy())
