"""Numbers from the texts of a file's cells, with the decimal sign that its cells prove."""

import re
from collections.abc import Mapping
from contextlib import suppress
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
_THOUSANDS: Final = r"^-?[0-9]{1,3}([.][0-9]{3})+$"


def read_numbers(
    columns: Mapping[str, pa.ChunkedArray], separator: str | None, decimal: str | None, *, usual: str = "."
) -> dict[str, NDArray[np.float64]]:
    """The numbers of text columns, NaN if a cell is none.

    The decimal sign is the same in all columns: the one with which more cells are numbers. If that decides
    nothing, as ``1,234`` is a number with both, it is a comma if semicolons separate the cells. ``usual`` is
    the vendor's: where it is a comma, ``18.402`` is refused if all numbers with a point may be thousands.

    Raises:
        CandleFileError: The decimal sign cannot be found.
    """
    if usual == "," and decimal is None and not _count(columns, ","):
        num_points = _count(columns, "[.]")
        if num_points and num_points == _count(columns, _THOUSANDS):
            text = f"{num_points:,} numbers such as 18.402, whose point may separate decimals or thousands"
            raise CandleFileError(f"{text}: give the decimal sign", field=DECIMAL)
    if decimal != ",":
        with suppress(pa.ArrowInvalid):  # if not all are plain numbers, each is read, several times as long
            return {name: _as_floats(column) for name, column in columns.items()}
    sign = decimal or _decimal_of(columns, separator)
    return {name: _read(column, sign) for name, column in columns.items()}


def have_decimal_commas(columns: Mapping[str, pa.ChunkedArray], decimal: str | None) -> bool:
    """Whether commas separate the decimals of these text columns."""
    return bool(columns) and (decimal or _decimal_of(columns, None)) == ","


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
