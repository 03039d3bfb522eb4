"""CSV to cells: UTF-8 or UTF-16, commas, quotes as in RFC 4180.

Python's csv module defines the cells. If all rows have as many cells as the header, and quotes enclose plain
cells only, pyarrow reads the file: it returns the same cells several times as fast, but counts no lines.
"""

import codecs
import csv
import io
import mmap
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from kronos_model.bars.files.cells import Cells, FindColumns, shown
from kronos_model.errors import CandleFileError

OTHER_SEPARATORS: Final = (";", "\t", "|")
REPLACED: Final = "\ufffd"
"""Python's replacement for bytes that are not UTF-8."""
CHUNK_ROWS: Final = 65_536

_QUOTED_CELL: Final = re.compile(r'(?<![^,])[ \t]*("(?:[^"]|"")*+")(?:[ \t]+(?=,|[\r\n]*$))?')
"""Group 1 is the cell without the blanks around its quotes: the csv module rejects those."""

_QUOTE: Final = re.compile(rb'"(?:(?<![^,\r\n]")[^"\r\n]*"(?![^,\r\n])|())')
"""Group 1 matches at a quote that does not enclose a whole cell free of quotes and line ends."""


def read_csv(path: Path, find_columns: FindColumns, last: int | None) -> Cells:
    """All rows, or the last ones with their lines.

    Blank rows do not count. Cells that a row lacks are empty. If columns share a title, the first is read.

    Raises:
        CandleFileError: it is empty, its quotes do not match, the separator is no comma, or a used cell is
            not UTF-8.
        OSError, csv.Error: it cannot be read.
    """
    with path.open("rb") as content:
        is_utf_16 = content.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        encoding = "utf-16" if is_utf_16 else "utf-8-sig"
        file = io.TextIOWrapper(content, encoding, errors="replace", newline="")
        rows = _numbered_rows(path, file)
        header_line, row = next(rows, (0, []))
        header = [title.strip() for title in row]
        if not header:
            raise CandleFileError(f"{path} is empty")
        if len(header) == 1 and any(separator in header[0] for separator in OTHER_SEPARATORS):
            raise CandleFileError(
                f"{path} has one column, {shown(header[0])!r}: write the file with commas between its cells"
            )
        try:
            places = find_columns(header)
        except CandleFileError:
            if REPLACED in "".join(header):
                raise _not_utf_8(path, header_line) from None
            raise
        is_whole = last is None and not is_utf_16
        cells = _read_plain(path, header_line, len(header), places) if is_whole else None
        if cells is None:
            cells = _read_rows(rows if last is None else deque(rows, maxlen=last), len(header), places)
            _check_utf_8(path, cells)
    titles = {name: header[place] for name, place in places.items()}
    return _without_blank_rows(replace(cells, titles=titles))


def _numbered_rows(path: Path, file: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Each row that is not blank, with the line on which it begins."""
    opening = ""

    def lines() -> Iterator[str]:
        nonlocal opening
        for line in file:
            if '"' in line and (' "' in line or '" ' in line or "\t" in line):
                line = _QUOTED_CELL.sub(r"\1", opening + line)[len(opening) :]
            opening = '"'  # if the row does not end here, the next line begins in a quoted cell
            yield line

    reader = csv.reader(lines(), strict=True)
    line = 1
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            if "limit" in str(error):
                raise
            text = f"{path}, line {line}: a quotation mark stands where none belongs"
            raise CandleFileError(text, details={"line": line}) from None
        if row is None:
            return
        if len(row) > 1 or any(cell.strip() for cell in row):
            yield line, row
        opening = ""
        line = reader.line_num + 1


def _read_plain(path: Path, header_line: int, width: int, places: Mapping[str, int]) -> Cells | None:
    """By pyarrow; None if the file has odd quotes, or a row of another number of cells."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if any(match[1] is not None for match in _QUOTE.finditer(content)):
            return None
    texts = [str(place) for place in range(width)]
    try:
        table = pa_csv.read_csv(
            path,
            read_options=pa_csv.ReadOptions(column_names=texts, skip_rows=header_line),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(texts, pa.string()),
                include_columns=[str(place) for place in sorted(set(places.values()))],
            ),
        )
    except pa.ArrowInvalid:
        return None
    return Cells({}, {name: table.column(str(place)) for name, place in places.items()}, "line")


def _read_rows(rows: Iterable[tuple[int, list[str]]], width: int, places: Mapping[str, int]) -> Cells:
    chunks: dict[str, list[pa.Array]] = {name: [] for name in places}
    numbers: list[int] = []
    overlong: list[tuple[int, int]] = []
    rows = iter(rows)
    while some := list(islice(rows, CHUNK_ROWS)):
        kept = []
        for line, row in some:
            if len(row) > width and any(cell.strip() for cell in row[width:]):
                overlong.append((line, len(row)))  # its cells cannot be matched to columns
                continue
            numbers.append(line)
            kept.append(row if len(row) >= width else row + [""] * (width - len(row)))
        for name, place in places.items():
            chunks[name].append(pa.array([row[place] for row in kept], pa.string()))
    columns = {name: pa.chunked_array(arrays, pa.string()) for name, arrays in chunks.items()}
    return Cells({}, columns, "line", np.array(numbers, dtype=np.int64), tuple(overlong))


def _check_utf_8(path: Path, cells: Cells) -> None:
    assert cells.numbers is not None, "_read_rows counts lines"
    found = [pc.index(pc.match_substring(each, REPLACED), True).as_py() for each in cells.columns.values()]
    if rows := [row for row in found if row >= 0]:
        raise _not_utf_8(path, int(cells.numbers[min(rows)]))


def _not_utf_8(path: Path, line: int) -> CandleFileError:
    text = f"{path}, line {line}: the text is not UTF-8: save the file as UTF-8"
    return CandleFileError(text, details={"line": line})


def _without_blank_rows(cells: Cells) -> Cells:
    """Texts trimmed, without the rows whose cells are all empty."""
    columns = {name: pc.utf8_trim_whitespace(column) for name, column in cells.columns.items()}
    is_blank = reduce(pc.and_, (pc.equal(column, "") for column in columns.values()))
    if not pc.any(is_blank).as_py():
        return replace(cells, columns=columns)
    keep = pc.invert(is_blank)
    numbers = None if cells.numbers is None else cells.numbers[keep.to_numpy()]
    kept = {name: column.filter(keep) for name, column in columns.items()}
    return replace(cells, columns=kept, numbers=numbers)
