"""A candle file as numbers and times. No row is dropped, whatever its cells hold."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pandas.tseries.api import guess_datetime_format

from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS
from kronos_model.bars.files.arrangement import arranged, blank_cells
from kronos_model.bars.files.clock import DATE_FORMAT, Clock, ClockError, join_date_and_time, read_clock
from kronos_model.bars.files.csv_cells import read_csv
from kronos_model.bars.files.find import PARQUET_SUFFIXES
from kronos_model.bars.files.header import Cells, Header, ReadHeader, read_header, shown
from kronos_model.bars.files.numbers import DECIMAL, have_decimal_commas, read_numbers
from kronos_model.bars.files.options import TIME_OF_DAY, TIMES, ReadOptions
from kronos_model.bars.files.order import ordered
from kronos_model.bars.files.parquet_cells import read_parquet
from kronos_model.bars.files.vendors import INSTRUMENT, SYMBOL
from kronos_model.errors import CandleFileError
from kronos_model.text import one_line


@dataclass(frozen=True, eq=False)
class CandleTable:
    """The rows of one file, in its order.

    Attributes:
        clock: the times.
        columns: (T,) float64 by name of ``COLUMNS``, NaN if a cell is no number. Volume and amount are left
            out if the file has none. Where only some of their cells are empty, these are 0.
        names: the instruments of the instrument column, in the order of their first rows.
        codes: each row's index into ``names``, -1 if its cell is empty, (T,); None without such a column.
    """

    clock: Clock
    columns: Mapping[str, NDArray[np.float64]]
    names: tuple[str, ...]
    codes: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.clock.wall)


def read_table(path: Path, options: ReadOptions) -> tuple[Cells, CandleTable]:
    """The cells of a file's columns, Parquet by its name, else CSV; and their numbers and times.

    Raises:
        CandleFileError: it cannot be read, a column is missing, or a column holds neither numbers nor times.
    """

    def header_of(rows: Sequence[Sequence[str]], head: Cells | None = None) -> Header:
        return read_header(path, rows, options) if head is None else ordered(path, head).header

    cells = _read_cells(path, header_of, options)
    table = _to_table(path, cells, options)
    for name in cells.columns.keys() & {*COLUMNS} - {*table.columns}:
        if not pc.all(blank_cells(cells.columns[name])).as_py():
            text = f"the column of {name}, {shown(cells.titles[name])}, is left out: it has no number"
            cells = replace(cells, notes=[*cells.notes, text])
    return cells, table


def _read_cells(path: Path, read_header: ReadHeader, options: ReadOptions) -> Cells:
    """The cells of a file's columns. Raises CandleFileError for whatever its reader raises."""
    is_parquet = path.suffix.lower() in PARQUET_SUFFIXES
    read = read_parquet if is_parquet else partial(read_csv, whole_lines=options.whole_lines)
    try:
        return arranged(path, read(path, read_header), options)
    except (CandleFileError, MemoryError):
        raise
    except Exception as error:  # libraries raise errors of any type; one bad file must not stop the others
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        kind = "Parquet" if is_parquet else "CSV"
        raise CandleFileError(f"{path} cannot be read as {kind}: {shown(one_line(text))}") from error


class _HeaderRead(BaseException):
    """Ends the reading of a file after its header."""


def names_instruments(path: Path, options: ReadOptions) -> bool:
    """Whether the file is of a form that may hold several instruments. Only its header is parsed."""
    found: list[Header] = []

    def read_only(rows: Sequence[Sequence[str]]) -> Header:
        found.append(read_header(path, rows, options))
        raise _HeaderRead

    with suppress(_HeaderRead, CandleFileError):
        _read_cells(path, read_only, options)
    return bool(found) and (found[0].names_instruments or bool(found[0].tickers))


def _to_table(path: Path, cells: Cells, options: ReadOptions) -> CandleTable:
    if 2 * len(cells.overlong) > len(cells.numbers):
        raise _too_wide(path, cells)
    symbols, _ = _instruments(cells.columns.get(SYMBOL))
    if len(symbols) > 1:
        title = shown(cells.titles[SYMBOL])
        text = f"{path} has {len(symbols)} instruments in its column {title}"
        raise CandleFileError(f"{text}: name that column, or write one file for each", field=INSTRUMENT)
    names, codes = _instruments(cells.columns.get(INSTRUMENT))
    try:
        try:
            clock = _read_times(cells, options.date_format, codes)
        except ClockError as error:  # the vendor decides between day and month
            vendor = cells.header.vendor
            if error.field != DATE_FORMAT or vendor is None or vendor.date_format is None:
                raise
            clock = _read_times(cells, vendor.date_format, codes)
        numbers = _read_columns(path, cells, options.decimal)
    except ClockError as error:
        if error.row is None:
            raise CandleFileError(f"{path} has {error}", field=error.field or TIMES) from None
        number = int(cells.numbers[error.row])
        message = f"{path}, {cells.unit} {number}: the file has {error}"
        raise CandleFileError(message, field=TIMES, details={cells.unit: number}) from None
    return CandleTable(clock, numbers, names, codes)


def _too_wide(path: Path, cells: Cells) -> CandleFileError:
    row, num_cells = next(iter(cells.overlong.items()))
    line = int(cells.numbers[row])
    text = f"{path}, line {line}: there are {num_cells} cells for {len(cells.header.titles)} titles, and too "
    text += "many in most rows: the numbers may have decimal commas, which also separate the cells (save the "
    text += "file with semicolons or with decimal points), or titles are missing"
    return CandleFileError(text, details={"line": line})


def _read_times(cells: Cells, date_format: str | None, codes: NDArray[np.int64] | None) -> Clock:
    column = cells.columns[TIMES]
    if (times_of_day := cells.columns.get(TIME_OF_DAY)) is None:
        return read_clock(column, date_format, codes)
    if date_format is not None and not any(hour in date_format for hour in ("%H", "%I")):
        some = next((text for text in times_of_day.to_pylist() if text), "00:00")
        date_format += (guess_datetime_format(f"2024-06-18 {some}") or "")[len("%Y-%m-%d") :]
    return read_clock(join_date_and_time(column, times_of_day), date_format, codes)


def _read_columns(path: Path, cells: Cells, decimal: str | None) -> dict[str, NDArray[np.float64]]:
    given = {name: cells.columns[name] for name in COLUMNS if name in cells.columns}
    is_empty = {}
    for name in COLUMNS[len(PRICE_COLUMNS) :]:
        if name in given:
            is_empty[name], given[name] = _blanks_as_zeros(given[name])
    texts = {name: column for name, column in given.items() if pa.types.is_string(column.type)}
    try:
        vendor = cells.header.vendor
        numbers = read_numbers(texts, cells.separator, decimal, usual=vendor.decimal if vendor else ".")
    except CandleFileError as error:
        raise CandleFileError(f"{path} has {error.message}", field=error.field) from None
    for name in given.keys() - texts.keys():
        numbers[name] = _cast(path, name, given[name])
        is_amount = name not in PRICE_COLUMNS
        if is_amount and np.any(np.nan_to_num(numbers[name]) % 1) and have_decimal_commas(texts, decimal):
            text = f"{path} has texts with decimal commas, and numbers such as 18.402 in the column of {name}"
            text += ", whose point may have separated thousands: give the decimal sign"
            raise CandleFileError(text, field=DECIMAL)
    for name, empty in is_empty.items():  # some vendors write columns without a number
        if np.all(empty | np.isnan(numbers[name])):
            del numbers[name]
    return {name: numbers[name] for name in given if name in numbers}


def _blanks_as_zeros(column: pa.ChunkedArray) -> tuple[NDArray[np.bool_], pa.ChunkedArray]:
    """Which cells are empty, and the column with zeros there."""
    is_empty = blank_cells(column)
    if not pc.any(is_empty).as_py() or not (pa.types.is_string(column.type) or _is_number(column.type)):
        return is_empty.to_numpy(), column
    return is_empty.to_numpy(), pc.if_else(is_empty, pa.scalar(0).cast(column.type), column)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _cast(path: Path, name: str, column: pa.ChunkedArray) -> NDArray[np.float64]:
    """The numbers of a column that holds no texts."""
    try:
        if pa.types.is_boolean(column.type):
            raise pa.ArrowTypeError("pyarrow would take true for 1")
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy())
    except pa.ArrowException:
        text = f"{path}: the column for {name} holds {column.type}, not numbers"
        raise CandleFileError(text, field=name) from None


def _instruments(column: Any) -> tuple[tuple[str, ...], NDArray[np.int64] | None]:
    if column is None:
        return (), None
    texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    encoded = texts.combine_chunks().dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return tuple(encoded.dictionary.to_pylist()), codes
