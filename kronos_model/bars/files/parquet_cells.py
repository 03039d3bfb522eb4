"""Parquet to cells."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kronos_model.bars.files.content import CUT, MAX_FOOTER_BYTES, check_unpacked
from kronos_model.bars.files.header import Cells, ReadHeader, shown
from kronos_model.errors import CandleFileError

CHUNK_ROWS: Final = 65_536
_TWO_LEVELS: Final = re.compile(r"\('(.*)', '(.*)'\)$")
_TEXTS: Final = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary())
"""Types whose cells may have any length."""


def read_parquet(path: Path, read_header: ReadHeader) -> Cells:
    """All rows.

    Raises:
        CandleFileError: It exceeds a limit of ``limits``, or a used column holds no plain values.
        OSError, pa.ArrowException: It cannot be read.
    """
    _check_footer(path)
    with pq.ParquetFile(path) as file:  # a dataset would make columns of folder names
        schema, metadata = file.schema_arrow, file.metadata
    # pandas writes the index last, and titles of two levels, such as those of yfinance, as text of a tuple.
    names = sorted(schema.names, key=lambda name: _TWO_LEVELS.match(name) is not None)
    levels = [found.groups() if (found := _TWO_LEVELS.match(name)) else (name, "") for name in names]
    rows = [[level.strip() for level in row] for row in zip(*levels, strict=True)]
    header = read_header(rows if any(rows[1]) else rows[:1])
    if any(rows[1]) and header.num_rows == 1:
        raise CandleFileError(f"{path} has titles of two levels, which are not those of yfinance: write one")
    for name, place in header.places.items():
        if not _is_plain(kind := schema.field(names[place]).type):
            text = f"{path}: the column for {name} holds {shown(str(kind))}, not numbers"
            raise CandleFileError(text, field=name)
    used = list(dict.fromkeys(names[place] for place in header.places.values()))
    num_bytes, packed_bytes = metadata.num_rows * 8 * len(used), path.stat().st_size
    check_unpacked(path, max(num_bytes, _stored_bytes(metadata, used)), packed_bytes)
    texts = [name for name in used if schema.field(name).type in _TEXTS]
    parts = {
        name: [_plainly(pa.array([], schema.field(names[at]).type))] for name, at in header.places.items()
    }
    # Texts stay in their dictionary until it is known how many bytes they have without it.
    with pq.ParquetFile(path, metadata=metadata, read_dictionary=texts) as file:
        for batch in file.iter_batches(CHUNK_ROWS, columns=used):
            num_bytes += sum(map(_text_bytes, batch.columns))
            check_unpacked(path, num_bytes, packed_bytes)
            for name, place in header.places.items():
                parts[name].append(_plainly(batch.column(names[place])))
    columns = {name: pa.chunked_array(arrays) for name, arrays in parts.items()}
    return Cells(header, columns, "row", lambda: np.arange(metadata.num_rows))


def _check_footer(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(max(0, path.stat().st_size - 8))
        end = file.read()
    if start == b"PAR1" and not end.endswith(b"PAR1"):
        raise CandleFileError(f"{path} is cut: {CUT}")
    if end.endswith(b"PAR1") and int.from_bytes(end[:4], "little") > MAX_FOOTER_BYTES:
        text = f"{path} has a footer of more than {MAX_FOOTER_BYTES >> 20} MiB"
        raise CandleFileError(f"{text}: write fewer columns and larger row groups")


def _stored_bytes(metadata: pq.FileMetaData, used: Collection[str]) -> int:
    """The bytes of these columns, decompressed, as the footer says. Values that repeat may count once."""
    places = [n for n in range(metadata.num_columns) if metadata.schema.column(n).path in used]
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(group.column(place).total_uncompressed_size for group in groups for place in places)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether a cell is one value of few bytes, or a text."""
    if pa.types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    is_short = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)
    return is_short or kind in _TEXTS


def _text_bytes(column: pa.Array) -> int:
    """The bytes of a column's texts without their dictionary."""
    if not pa.types.is_dictionary(column.type) or column.type.value_type not in _TEXTS:
        return 0
    lengths = pc.binary_length(column.dictionary)
    return int(pc.sum(lengths.take(column.indices).cast(pa.int64())).as_py() or 0)


def _plainly(column: pa.Array) -> pa.Array:
    """Categories as their values, and all types of text as one, trimmed."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    return pc.utf8_trim_whitespace(column) if pa.types.is_string(column.type) else column
