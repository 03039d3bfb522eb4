"""Candles as they lie in CSV and Parquet files: which files, which of their columns, every row as it stands.

Nothing is dropped here but lines of a CSV file that have too few or too many cells; a cell that is no number
becomes NaN, one that is no time NaT.
"""

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS, TIME_COLUMNS
from kronos_model.errors import TrainingDataError
from kronos_model.finetuning.clock_columns import (
    Clock,
    ClockError,
    join_date_and_time,
    read_clock,
)
from kronos_model.finetuning.config import DataConfig

PANDAS_INDEX: Final = "__index_level_0__"
"""What pandas calls an index without a name in Parquet."""
SUFFIXES: Final = (".csv", ".parquet", ".pq")

OTHER_SEPARATORS: Final = (";", "\t", "|")
DATE_AND_TIME: Final = ("date", "time")
"""Columns that are joined to one of the times."""

_NUMBER: Final = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"


@dataclass(frozen=True, eq=False)
class CandleTable:
    """The rows of one file, in its order.

    Attributes:
        clock: their times.
        columns: by name of ``COLUMNS``, (T,) float64; volume and amount only where the file has any.
        names: the instruments that an instrument column names, in the order of their first rows.
        codes: each row's index into ``names``, -1 where its cell is empty, (T,); None without such a column.
        num_malformed: lines left out for their number of cells.
    """

    clock: Clock
    columns: Mapping[str, NDArray[np.float64]]
    names: tuple[str, ...]
    codes: NDArray[np.int64] | None
    num_malformed: int

    def __len__(self) -> int:
        return len(self.clock.wall)


def find_files(config: DataConfig) -> dict[Path, Path | None]:
    """The files that ``config.path`` names, and those in its folders and their folders, sorted, each once.

    By file, the folder of ``config.path`` that it was found in; None for one that is named by itself. What is
    hidden is passed over, and in folders whatever does not end like a CSV or Parquet file. Links to files are
    followed, links to folders below a named one are not.

    Raises TrainingDataError (``data.path``).
    """
    files: dict[Path, tuple[Path, Path | None]] = {}  # by absolute path
    for text in config.paths:
        path = Path(text)
        if path.is_dir():
            found = _files_below(path)
            if not found:
                raise _path_error(f"{path} has no files that end in {', '.join(SUFFIXES)}")
        elif not path.exists():
            raise _path_error(f"{path} does not exist")
        elif path.suffix.lower() not in SUFFIXES:
            raise _path_error(
                f"{path} is neither CSV nor Parquet: its name must end in {', '.join(SUFFIXES)}"
            )
        else:
            found = [path]
        for file in found:
            if not path.is_dir():
                files[file.absolute()] = file, None
            files.setdefault(file.absolute(), (file, path))
    if not files:
        raise _path_error("data.path names no file")
    return dict(files.values())


def read_table(path: Path, config: DataConfig) -> CandleTable:
    """All rows of a file.

    Its times are one column, or dates and times of day in the columns ``date`` and ``time``.

    Raises TrainingDataError: it cannot be read, a column is not there (``data.columns.close`` or
    ``data.instrument_column``), several columns could be the times and none is mapped
    (``data.columns.timestamps``), or the times are with and without offsets, or in a zone nobody knows.
    """
    is_csv = path.suffix.lower() == ".csv"
    try:
        header = _csv_header(path) if is_csv else pq.read_schema(path).names
        places = _find_columns(path, header, config)
        num_malformed = 0
        if is_csv:
            columns, num_malformed = _read_csv(path, len(header), places)
        else:
            columns = _read_parquet(path, header, places)
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        kind = "CSV" if is_csv else "Parquet"
        raise _path_error(f"{path} cannot be read as {kind}: {str(error)[:300]}") from error
    try:
        clock = read_clock(_times(path, columns))
    except ClockError as error:
        raise TrainingDataError(f"{path} has {error}", field="data.columns.timestamps") from None
    numbers: dict[str, NDArray[np.float64]] = {
        name: _numbers(path, name, columns[name]) for name in COLUMNS if name in columns
    }
    for name in COLUMNS[len(PRICE_COLUMNS) :]:
        if name in numbers and np.isnan(numbers[name]).all():  # as some vendors have it where there is none
            del numbers[name]
    names, codes = _instruments(columns.get("instrument"))
    return CandleTable(clock, numbers, names, codes, num_malformed)


def _path_error(message: str) -> TrainingDataError:
    return TrainingDataError(message, field="data.path")


def _files_below(folder: Path) -> list[Path]:
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(parent, name) for name in files if not name.startswith(".")]
        found += [path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file()]
    return sorted(found)


def _csv_header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(file), [])
    if len(header) == 1 and any(separator in header[0] for separator in OTHER_SEPARATORS):
        raise _path_error(
            f"{path} has one column, {header[0][:300]!r}: is the separator a comma? Write the file "
            "with commas between its cells"
        )
    return header


def _find_columns(path: Path, header: Sequence[str], config: DataConfig) -> dict[str, int]:
    """Where the columns are, by our names and ``instrument``. Case and spaces around do not count.

    Instead of ``timestamps`` there may be ``date`` and ``time``.
    """
    by_name: dict[str, int] = {}
    for place, name in enumerate(header):
        by_name.setdefault(name.strip().lower(), place)
    shown = ", ".join(header)[:300] or "no columns"
    places: dict[str, int] = {}
    for name in ("timestamps", *COLUMNS):
        mapped = config.columns.get(name)  # type: ignore[call-overload]
        key = name if mapped is None else mapped.strip().lower()
        if key in by_name:
            places[name] = by_name[key]
        elif mapped is not None:
            raise TrainingDataError(
                f"{path} has no column {mapped!r} for {name}; it has {shown}", field=f"data.columns.{name}"
            )
        elif name == "timestamps":
            places |= _find_times(path, by_name, shown)
        elif name in PRICE_COLUMNS:
            raise TrainingDataError(
                f"{path} has no column {name!r}; it has {shown}: say in data.columns which one it is",
                field=f"data.columns.{name}",
            )
    if config.instrument_column is not None:
        key = config.instrument_column.strip().lower()
        if key not in by_name:
            raise TrainingDataError(
                f"{path} has no column {config.instrument_column!r}; it has {shown}",
                field="data.instrument_column",
            )
        places["instrument"] = by_name[key]
    return places


def _find_times(path: Path, by_name: Mapping[str, int], shown: str) -> dict[str, int]:
    """The one column that could be the times, or two: dates as ``timestamps``, times of day as ``time``."""
    found = tuple(name for name in TIME_COLUMNS if name in by_name)
    if found == DATE_AND_TIME:
        return {"timestamps": by_name[found[0]], "time": by_name[found[1]]}
    if len(found) > 1:
        raise _several_times(path, found)
    name = found[0] if found else PANDAS_INDEX
    if name not in by_name:
        raise TrainingDataError(
            f"{path} has no column of the times ({', '.join(TIME_COLUMNS)}); it has {shown}: say in "
            "data.columns which one it is",
            field="data.columns.timestamps",
        )
    return {"timestamps": by_name[name]}


def _several_times(path: Path, found: Sequence[str]) -> TrainingDataError:
    return TrainingDataError(
        f"{path} has several columns that could be the times, {', '.join(found)}: say in "
        "data.columns.timestamps which one it is",
        field="data.columns.timestamps",
    )


def _times(path: Path, columns: Mapping[str, pa.ChunkedArray]) -> pa.ChunkedArray:
    """The column of the times, joined where it is two."""
    if "time" not in columns:
        return columns["timestamps"]
    joined = join_date_and_time(columns["timestamps"], columns["time"])
    if joined is None:
        raise _several_times(path, DATE_AND_TIME)
    return joined


def _read_csv(path: Path, width: int, places: Mapping[str, int]) -> tuple[dict[str, pa.ChunkedArray], int]:
    """The columns as texts, and how many lines were left out."""
    malformed: list[int] = []

    def leave_out(row: pa_csv.InvalidRow) -> str:
        malformed.append(row.actual_columns)
        return "skip"

    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        next(reader)
        header_lines = reader.line_num
    texts = [str(place) for place in range(width)]
    try:
        table = pa_csv.read_csv(
            path,
            read_options=pa_csv.ReadOptions(column_names=texts, skip_rows=header_lines),
            parse_options=pa_csv.ParseOptions(invalid_row_handler=leave_out),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(texts, pa.string()),
                include_columns=[str(place) for place in sorted(set(places.values()))],
            ),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV" not in str(error):
            raise
        return {name: pa.chunked_array([], pa.string()) for name in places}, 0  # a header and no rows
    return {name: table.column(str(place)) for name, place in places.items()}, len(malformed)


def _read_parquet(path: Path, header: Sequence[str], places: Mapping[str, int]) -> dict[str, pa.ChunkedArray]:
    with pq.ParquetFile(path) as file:  # a dataset would take names of folders for columns
        table = file.read(columns=[header[place] for place in sorted(set(places.values()))])
    return {name: _plainly(table.column(header[place])) for name, place in places.items()}


def _plainly(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories as their values, and all kinds of texts as one."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_text = pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type)
    return column.cast(pa.string()) if is_text else column


def _numbers(path: Path, name: str, column: pa.ChunkedArray) -> NDArray[np.float64]:
    """NaN where a cell is none."""
    if pa.types.is_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        try:
            numbers = column.cast(pa.float64())
        except pa.ArrowInvalid:  # looked at cell by cell only then, which takes several times as long
            is_number = pc.match_substring_regex(column, _NUMBER)
            numbers = pc.if_else(is_number, column, pa.scalar(None, column.type)).cast(pa.float64())
    else:
        try:
            numbers = column.cast(pa.float64(), safe=False)
        except pa.ArrowException:
            raise TrainingDataError(
                f"{path}: the column for {name} holds {column.type}, not numbers",
                field=f"data.columns.{name}",
            ) from None
    values: NDArray[np.float64] = numbers.to_numpy()
    return values


def _instruments(column: Any) -> tuple[tuple[str, ...], NDArray[np.int64] | None]:
    if column is None:
        return (), None
    texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    encoded = texts.combine_chunks().dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return tuple(encoded.dictionary.to_pylist()), codes
