"""Candles from CSV and Parquet files, as people keep them: columns in any order and case, and others."""

import csv
import math
from collections import deque
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kronos_model.bars.columns import PRICE_COLUMNS, TIME_COLUMNS
from kronos_model.errors import InputError
from kronos_model.text import one_line, printable

OPTIONAL_COLUMNS = ("volume", "amount")
PARQUET_SUFFIXES: Final = (".parquet", ".pq")
SUFFIXES: Final = (".csv", *PARQUET_SUFFIXES)
MAX_SHOWN_CHARS: Final = 300
PANDAS_INDEX: Final = "__index_level_0__"
"""What pandas calls an index without a name in Parquet."""


def read_candles(path: Path, max_bars: int) -> pd.DataFrame:
    """The last ``max_bars`` rows of a file: Parquet by its name, else CSV.

    Returns:
        ``timestamps`` as ISO 8601 strings, in CSV the way they stand in the file, then the prices and, where
        the file has them, ``volume`` and ``amount`` as float64.

    Raises:
        InputError: the file cannot be read, lacks a column, or has a cell that is no time or no number;
            ``field`` is the column, ``details`` has the ``line`` in a CSV file, the first being 1, or the
            ``row`` in a Parquet file, the first being 0.
    """
    try:
        return _read_candles(path, max_bars)
    except InputError:
        raise
    except Exception as error:  # libraries raise what they like, and one file is to stop no other
        raise InputError(f"{path} cannot be read: {type(error).__name__}: {_reason(error)}") from error


def _read_candles(path: Path, max_bars: int) -> pd.DataFrame:
    is_parquet = path.suffix.lower() in PARQUET_SUFFIXES
    table = _read_parquet(path, max_bars) if is_parquet else _read_csv(path, max_bars)
    by_name = {str(name).strip().lower(): name for name in table.columns}
    for name in (*TIME_COLUMNS, *PRICE_COLUMNS, *OPTIONAL_COLUMNS):
        spelt = [str(column) for column in table.columns if str(column).strip().lower() == name]
        if len(spelt) > 1:
            raise InputError(f"{path} has the columns {' and '.join(spelt)}: keep one of them", field=name)
    if is_parquet and PANDAS_INDEX in by_name and not set(TIME_COLUMNS) & by_name.keys():
        by_name[TIME_COLUMNS[0]] = PANDAS_INDEX
    if {"date", "time"} <= by_name.keys() and not set(TIME_COLUMNS[:3]) & by_name.keys():
        table[by_name["date"]] += " " + table[by_name["time"]]
    time_column = next((name for name in TIME_COLUMNS if name in by_name), None)
    if time_column is None:
        raise InputError(
            f"{path} has no column with the times: it is to be named one of {', '.join(TIME_COLUMNS)}; "
            f"the file has {_shown(', '.join(map(str, table.columns)))}.",
            field="timestamps",
        )
    if missing := [name for name in PRICE_COLUMNS if name not in by_name]:
        raise InputError(
            f"{path} has no column {' and no column '.join(missing)}; "
            f"the file has {_shown(', '.join(map(str, table.columns)))}.",
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


def _read_csv(path: Path, max_bars: int) -> pd.DataFrame:
    """The last rows, all cells as texts, counted as lines of the file; of columns of one name the first.

    Not by pandas, which takes the first column for an index where rows end in a comma, unpacks archives, and
    counts no blank lines.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = _numbered_rows(file)
            _, header = next(rows, (0, []))
            if not header:
                raise InputError(f"{path} cannot be read as CSV: it is empty")
            last = deque(rows, maxlen=max_bars)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV: {_reason(error)}") from error
    for line, row in last:
        if any(cell.strip() for cell in row[len(header) :]):  # which column each belongs to is not known then
            raise InputError(
                f"{path}, line {line}: there are {len(row)} cells where the header has {len(header)}.",
                details={"line": line},
            )
    places: dict[str, int] = {}
    for place, name in enumerate(header):
        if name:
            places.setdefault(name, place)
    columns = {
        name: [row[place] if place < len(row) else "" for _, row in last] for name, place in places.items()
    }
    return pd.DataFrame(columns, index=[line for line, _ in last], dtype=str)


def _numbered_rows(file: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Each row that is not blank, with the line on which it begins."""
    reader = csv.reader(file, skipinitialspace=True, strict=True)
    line = 1
    for row in reader:
        if len(row) > 1 or any(cell.strip() for cell in row):
            yield line, row
        line = reader.line_num + 1


def _read_parquet(path: Path, max_bars: int) -> pd.DataFrame:
    """The columns that could be candles, with the rows counted as in the file."""
    wanted = {*TIME_COLUMNS, *PRICE_COLUMNS, *OPTIONAL_COLUMNS, PANDAS_INDEX}
    try:
        with pq.ParquetFile(path) as file:  # a dataset would take names of folders for columns
            names = file.schema_arrow.names
            found = [name for name in names if name.strip().lower() in wanted]
            # Of a file that is no candles at all, the message is to name what it has.
            table = file.read(columns=found or names).combine_chunks()
        first = max(0, len(table) - max_bars)
        rows: pd.DataFrame = table.slice(first).to_pandas(ignore_metadata=True)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read as Parquet: {_reason(error)}") from error
    rows.index = pd.RangeIndex(first, first + len(rows))
    return rows


def _reason(error: Exception) -> str:
    """In one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return _shown(one_line(text))


def _shown(text: str) -> str:
    """Of what the file has, as much as says something, and nothing that steers the terminal."""
    return printable(text[:MAX_SHOWN_CHARS])


def _times(path: Path, column: str, table: pd.DataFrame) -> list[str]:
    texts: list[str] = []
    for row, time in zip(table.index, table[column].tolist(), strict=True):
        text = time.isoformat() if isinstance(time, date) and not pd.isna(time) else time
        try:
            datetime.fromisoformat(text)
        except (TypeError, ValueError):
            raise _cell_error(path, column, row, time, "a time like 2024-06-18 11:15:00") from None
        texts.append(text)
    return texts


def _numbers(path: Path, column: str, table: pd.DataFrame) -> list[float]:
    numbers: list[float] = pd.to_numeric(table[column], errors="coerce").astype("float64").tolist()
    for row, number, cell in zip(table.index, numbers, table[column].tolist(), strict=True):
        if math.isnan(number):
            raise _cell_error(path, column, row, cell, "a number")
    return numbers


def _cell_error(path: Path, column: str, row: int, cell: Any, wanted: str) -> InputError:
    shown = "nothing" if cell == "" or pd.isna(cell) else f"'{_shown(str(cell))}'"
    place = {"row" if path.suffix.lower() in PARQUET_SUFFIXES else "line": row}
    ((unit, number),) = place.items()
    return InputError(
        f"{path}, {unit} {number}, column {column}: there is {shown} where {wanted} is needed.",
        field=column,
        details=place,
    )
