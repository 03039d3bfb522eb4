"""Parquet to cells."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kronos_model.bars.files.cells import Cells, ReadHeader


def read_parquet(path: Path, read_header: ReadHeader) -> Cells:
    """All rows. Raises OSError or pa.ArrowException if it cannot be read."""
    with pq.ParquetFile(path) as file:  # a dataset would make columns of folder names
        names = file.schema_arrow.names
        header = read_header([[name.strip() for name in names]])
        table = file.read(columns=[names[place] for place in sorted(set(header.places.values()))])
    columns = {name: _plainly(table.column(names[place])) for name, place in header.places.items()}
    return Cells(header.used_titles, columns, "row", lambda: np.arange(len(table)))


def _plainly(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories as their values, and all types of text as one, trimmed."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    return pc.utf8_trim_whitespace(column) if pa.types.is_string(column.type) else column
