"""CSV to cells: any common separator, quotes as in RFC 4180.

Python's csv module defines the cells. If all rows have as many cells as the header, and quotes enclose plain
cells only, pyarrow reads the file: it returns the same cells several times as fast, but counts no lines.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from itertools import chain, islice
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from kronos_model.bars.files.content import read_text
from kronos_model.bars.files.header import HEADER_ROWS, Cells, Header, ReadHeader
from kronos_model.bars.files.vendors import ABOVE_TITLES, ENCODINGS, PLAIN
from kronos_model.errors import CandleFileError

# While Arrow reads a CSV file it handles SIGINT and SIGTERM itself, and loses some: Ctrl-C had no effect.
pa.enable_signal_handlers(False)

SEPARATORS: Final = (",", ";", "\t", "|")
REPLACED: Final = "\ufffd"
"""Python's replacement for bytes that are not UTF-8."""
CHUNK_ROWS: Final = 65_536
NO_LINE_END: Final = "the last line has no line end: the file may be cut, and its last number too short"
NOT_YET: Final = "the last line has no line end yet, so it is left out"
HEAD_BYTES: Final = 2**20
"""From so much of a longer file without titles the order of its columns is proved."""

Row = tuple[int, list[str]]
"""The line on which a row begins, and its cells."""


def read_csv(path: Path, read_header: ReadHeader, *, whole_lines: bool = False) -> Cells:
    """All rows; if only ``whole_lines``, without a last line that has no line end.

    Blank rows do not count. Cells that a row lacks are empty. If columns share a title, the first is read.

    Raises:
        CandleFileError: it is empty or too large, its quotes do not match, or a used cell is neither UTF-8
            nor in the encoding of a vendor whose titles the file has.
        OSError, csv.Error: it cannot be read.
    """
    content = read_text(path)
    notes = [] if content.endswith((b"\n", b"\r")) else [NOT_YET if whole_lines else NO_LINE_END]
    if whole_lines:
        content = content[: max(content.rfind(b"\n"), content.rfind(b"\r")) + 1]
    first = re.match(rb"(\s*)[^\r\n]*\s*", content)
    if first is not None and ABOVE_TITLES.search(first[0]):  # blank lines keep the count of lines
        content = b"\n" * first[0].count(b"\n") + content[first.end() :]
        notes.append(f"line {1 + first[1].count(bytes([10]))}, above the titles, is left out")
    return replace(_read_text(path, content, read_header), notes=notes)


def _read_text(path: Path, content: bytes, read_header: ReadHeader) -> Cells:
    """The cells of a text in UTF-8, or in the encoding of a vendor whose titles are in it."""
    separator = _separator_of(content)
    rows = _numbered_rows(path, content, separator)
    first = list(islice(rows, HEADER_ROWS + 1))
    if not first:
        raise CandleFileError(f"{path} is empty")
    try:
        header = read_header([[cell.strip() for cell in row] for _, row in first])
    except CandleFileError:
        if REPLACED not in "".join(first[0][1]):
            raise
        if (decoded := _decoded(content, separator, read_header)) is None:
            raise _not_utf_8(path, first[0][0]) from None
        return _read_text(path, decoded, read_header)
    first = first[header.num_rows :]
    if header.vendor is None and len(content) > HEAD_BYTES:
        end = content.rfind(b"\n", 0, HEAD_BYTES) + 1
        head = _read_plain(content[:end], separator, first[0][0] - 1, header)
        header = header if head is None else read_header([], replace(head, separator=separator))
    cells = _read_plain(content, separator, first[0][0] - 1, header) if first else None
    if cells is None:
        cells = _read_rows(chain(first, rows), header, is_cut=not content.endswith((b"\n", b"\r")))
        columns = cells.columns.values()
        found = [pc.index(pc.match_substring(column, REPLACED), True).as_py() for column in columns]
        if at_fault := [row for row in found if row >= 0]:
            raise _not_utf_8(path, int(cells.numbers[min(at_fault)]))
    return replace(cells, separator=separator)


def _decoded(content: bytes, separator: str, read_header: ReadHeader) -> bytes | None:
    """The text in UTF-8 whose titles are those of a vendor in its own encoding; None without one."""
    line = content.lstrip().splitlines()[0]
    for encoding in ENCODINGS:
        titles = next(csv.reader([line.decode(encoding, "replace")], delimiter=separator))
        try:
            vendor = read_header([[title.strip() for title in titles]]).vendor or PLAIN
        except CandleFileError:
            continue
        if vendor.encoding == encoding:
            return content.decode(encoding, "replace").encode()
    return None


def _separator_of(content: bytes) -> str:
    """The separator that occurs most often in the first line, outside of quotes."""
    line = re.sub(rb'"[^"]*"', b"", content.lstrip()[: 2**16].partition(b"\n")[0])
    return max(SEPARATORS, key=lambda separator: line.count(separator.encode()))


@lru_cache
def _quoted_cell(separator: str) -> re.Pattern[str]:
    """Group 1 is a cell without the blanks around its quotes: the csv module rejects those."""
    blanks = " " if separator == "\t" else " \t"
    end = rf"(?:[{blanks}]+(?={re.escape(separator)}|[\r\n]*$))?"
    return re.compile(rf'(?<![^{separator}])[{blanks}]*("(?:[^"]|"")*+"){end}')


@lru_cache
def _odd_quote(separator: str) -> re.Pattern[bytes]:
    """Group 1 matches at a quote that does not enclose a whole cell free of quotes and line ends."""
    pattern = rf'"(?:(?<![^{separator}\r\n]")[^"\r\n]*"(?![^{separator}\r\n])|())'
    return re.compile(pattern.encode())


def _numbered_rows(path: Path, content: bytes, separator: str) -> Iterator[Row]:
    """Each row that is not blank, with the line on which it begins."""
    opening = ""
    quoted_cell = _quoted_cell(separator)

    def lines() -> Iterator[str]:
        nonlocal opening
        for line in io.TextIOWrapper(io.BytesIO(content), "utf-8", errors="replace", newline=""):
            if '"' in line and (' "' in line or '" ' in line or "\t" in line):
                line = quoted_cell.sub(r"\1", opening + line)[len(opening) :]
            opening = '"'  # if the row does not end here, the next line begins in a quoted cell
            yield line

    reader = csv.reader(lines(), strict=True, delimiter=separator)
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


def _read_plain(content: bytes, separator: str, num_lines: int, header: Header) -> Cells | None:
    """Read what comes after the first ``num_lines`` lines, by pyarrow.

    None if the file has odd quotes, or a row of another number of cells.
    """
    if any(match[1] is not None for match in _odd_quote(separator).finditer(content)):
        return None
    texts = [str(place) for place in range(len(header.titles))]
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(content),
            read_options=pa_csv.ReadOptions(column_names=texts, skip_rows=num_lines),
            parse_options=pa_csv.ParseOptions(delimiter=separator),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(texts, pa.string()),
                include_columns=[str(place) for place in sorted(set(header.places.values()))],
            ),
        )
    except pa.ArrowInvalid:
        return None
    columns = {
        name: pc.utf8_trim_whitespace(table.column(str(place))) for name, place in header.places.items()
    }
    keep = pc.invert(reduce(pc.and_, (pc.equal(column, "") for column in columns.values())))

    def count() -> NDArray[np.int64]:
        if content.count(b"\n", 0, -1) + 1 == num_lines + len(table):  # no line is blank
            lines: Sequence[int] = range(num_lines + 1, num_lines + len(table) + 1)
        else:
            lines = [n for n, line in enumerate(content.splitlines(), 1) if line and n > num_lines]
        kept: NDArray[np.int64] = np.array(lines, dtype=np.int64)[keep.to_numpy()]
        return kept

    if not pc.all(keep).as_py():
        columns = {name: column.filter(keep) for name, column in columns.items()}
    return Cells(header, columns, "line", count)


def _read_rows(rows: Iterable[Row], header: Header, *, is_cut: bool) -> Cells:
    """All rows. If the text may be cut, a last one with too few cells counts as one with too many."""
    chunks: dict[str, list[pa.Array]] = {name: [] for name in header.places}
    width, places = len(header.titles), header.places.values()
    numbers: list[int] = []
    overlong: dict[int, int] = {}
    rows, last = iter(rows), width
    while some := list(islice(rows, CHUNK_ROWS)):
        kept = []
        for line, row in some:
            if len(row) > width and "".join(row[width:]).strip():
                overlong[len(numbers)] = len(row)
                row = []  # its cells cannot be matched to columns
            elif not any(row[place].strip() for place in places if place < len(row)):
                continue
            numbers.append(line)
            kept.append(row if len(row) >= width else row + [""] * (width - len(row)))
            last = len(row) or width
        for name, place in header.places.items():
            chunks[name].append(pa.array([row[place] for row in kept], pa.string()))
    if is_cut and last < width:
        overlong[len(numbers) - 1] = last
    columns = {
        name: pc.utf8_trim_whitespace(pa.chunked_array(arrays, pa.string()))
        for name, arrays in chunks.items()
    }
    return Cells(header, columns, "line", lambda: np.array(numbers, dtype=np.int64), overlong)


def _not_utf_8(path: Path, line: int) -> CandleFileError:
    text = f"{path}, line {line}: the text is not UTF-8: save the file as UTF-8"
    return CandleFileError(text, details={"line": line})
