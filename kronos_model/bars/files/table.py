"""A candle file as numbers and times. No row is dropped, whatever its cells hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS
from kronos_model.bars.files.cells import Cells, shown
from kronos_model.bars.files.clock import Clock, ClockError, join_date_and_time, read_clock
from kronos_model.bars.files.csv_cells import read_csv
from kronos_model.bars.files.find import PARQUET_SUFFIXES
from kronos_model.bars.files.header import INSTRUMENT, TIME_OF_DAY, TIMES, find_columns
from kronos_model.bars.files.parquet_cells import read_parquet
from kronos_model.errors import CandleFileError
from kronos_model.text import one_line

_NUMBER: Final = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"


@dataclass(frozen=True, eq=False)
class CandleTable:
    """The rows of one file, in its order.

    Attributes:
        clock: the times.
        columns: (T,) float64 by name of ``COLUMNS``, NaN if a cell is no number. Volume and amount are left
            out if the file has none.
        names: the instruments of the instrument column, in the order of their first rows.
        codes: each row's index into ``names``, -1 if its cell is empty, (T,); None without such a column.
    """

    clock: Clock
    columns: Mapping[str, NDArray[np.float64]]
    names: tuple[str, ...]
    codes: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.clock.wall)


def read_cells(path: Path, names: Mapping[str, str] | None = None, last: int | None = None) -> Cells:
    """The cells of a file's columns: Parquet by its name, else CSV.

    Args:
        names: titles of columns in the file, if not our names; see ``find_columns``.
        last: the number of last rows to read; all if None.

    Raises:
        CandleFileError: it cannot be read, or a column is missing.
    """
    is_parquet = path.suffix.lower() in PARQUET_SUFFIXES
    read = read_parquet if is_parquet else read_csv
    try:
        return read(path, partial(find_columns, path, names=names or {}), last)
    except (CandleFileError, MemoryError):
        raise
    except Exception as error:  # libraries raise errors of any type; one bad file must not stop the others
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        kind = "Parquet" if is_parquet else "CSV"
        raise CandleFileError(f"{path} cannot be read as {kind}: {shown(one_line(text))}") from error


def to_table(path: Path, cells: Cells) -> CandleTable:
    """Numbers and times from cells. Raises CandleFileError if a column holds neither."""
    try:
        clock = read_clock(times_of(cells))
    except ClockError as error:
        if error.row is None or cells.numbers is None:
            raise CandleFileError(f"{path} has {error}", field=TIMES) from None
        number = int(cells.numbers[error.row])
        message = f"{path}, {cells.unit} {number}: the file has {error}"
        raise CandleFileError(message, field=TIMES, details={cells.unit: number}) from None
    numbers = {name: _numbers(path, name, cells.columns[name]) for name in COLUMNS if name in cells.columns}
    for name in COLUMNS[len(PRICE_COLUMNS) :]:
        if name in numbers and np.isnan(numbers[name]).all():  # some vendors write empty columns
            del numbers[name]
    return CandleTable(clock, numbers, *_instruments(cells.columns.get(INSTRUMENT)))


def times_of(cells: Cells) -> pa.ChunkedArray:
    """The column of times; dates and times of day are joined, or a ClockError is raised."""
    if TIME_OF_DAY not in cells.columns:
        return cells.columns[TIMES]
    return join_date_and_time(cells.columns[TIMES], cells.columns[TIME_OF_DAY])


def _numbers(path: Path, name: str, column: pa.ChunkedArray) -> NDArray[np.float64]:
    """The column's numbers, NaN if a cell is none."""
    if pa.types.is_string(column.type):
        try:
            numbers = column.cast(pa.float64())
        except pa.ArrowInvalid:  # not all are numbers: filter them, which takes several times as long
            is_number = pc.match_substring_regex(column, _NUMBER)
            numbers = pc.if_else(is_number, column, pa.scalar(None, column.type)).cast(pa.float64())
    else:
        try:
            if pa.types.is_boolean(column.type):
                raise pa.ArrowTypeError("pyarrow would take true for 1")
            numbers = column.cast(pa.float64(), safe=False)
        except pa.ArrowException:
            text = f"{path}: the column for {name} holds {column.type}, not numbers"
            raise CandleFileError(text, field=name) from None
    return np.asarray(numbers.to_numpy())


def _instruments(column: Any) -> tuple[tuple[str, ...], NDArray[np.int64] | None]:
    if column is None:
        return (), None
    texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    encoded = texts.combine_chunks().dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return tuple(encoded.dictionary.to_pylist()), codes
