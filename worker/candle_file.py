"""Candles from a CSV file, as people keep them: columns in any order and case, more of them than needed."""

import math
from datetime import datetime
from pathlib import Path

import pandas as pd

from kronos_model.candles import PRICE_COLUMNS, TIME_COLUMNS
from kronos_model.errors import InputError

OPTIONAL_COLUMNS = ("volume", "amount")


def read_candles(path: Path, max_bars: int) -> pd.DataFrame:
    """The last ``max_bars`` rows of a CSV file.

    Returns:
        ``timestamps`` as ISO 8601 strings the way they stand in the file, then the prices and, where the
        file has them, ``volume`` and ``amount`` as float64.

    Raises:
        InputError: the file cannot be read, lacks a column, or has a cell that is no time or no number;
            ``field`` is the column, ``details["line"]`` the line in the file.
    """
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path} cannot be read as CSV: {error}") from error
    by_name = {str(name).strip().lower(): name for name in table.columns}
    if {"date", "time"} <= by_name.keys() and not set(TIME_COLUMNS[:3]) & by_name.keys():
        table[by_name["date"]] += " " + table[by_name["time"]]
    time_column = next((name for name in TIME_COLUMNS if name in by_name), None)
    if time_column is None:
        raise InputError(
            f"{path} has no column with the times: it is to be named one of {', '.join(TIME_COLUMNS)}; "
            f"the file has {', '.join(map(str, table.columns))}.",
            field="timestamps",
        )
    if missing := [name for name in PRICE_COLUMNS if name not in by_name]:
        raise InputError(
            f"{path} has no column {' and no column '.join(missing)}; "
            f"the file has {', '.join(map(str, table.columns))}.",
            field=missing[0],
        )
    if table.empty:
        raise InputError(f"{path} has a header and no rows.")
    table = table.tail(max_bars)
    candles = pd.DataFrame({"timestamps": _times(path, by_name[time_column], table)})
    for name in (*PRICE_COLUMNS, *OPTIONAL_COLUMNS):
        if name in by_name:
            candles[name] = _numbers(path, by_name[name], table)
    return candles


def _times(path: Path, column: str, table: pd.DataFrame) -> list[str]:
    texts: list[str] = table[column].tolist()
    for row, text in zip(table.index, texts, strict=True):
        try:
            datetime.fromisoformat(text)
        except ValueError:
            raise _cell_error(path, column, row, text, "a time like 2024-06-18 11:15:00") from None
    return texts


def _numbers(path: Path, column: str, table: pd.DataFrame) -> list[float]:
    numbers: list[float] = pd.to_numeric(table[column], errors="coerce").astype("float64").tolist()
    for row, number, text in zip(table.index, numbers, table[column].tolist(), strict=True):
        if math.isnan(number):
            raise _cell_error(path, column, row, text, "a number")
    return numbers


def _cell_error(path: Path, column: str, row: int, text: str, wanted: str) -> InputError:
    line = row + 2  # the header is line 1
    shown = f"'{text}'" if text else "nothing"
    return InputError(
        f"{path}, line {line}, column {column}: there is {shown} where {wanted} is needed.",
        field=column,
        details={"line": line},
    )
