"""Parquet to cells."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kronos_model.bars.files.cells import Cells, FindColumns


def read_parquet(path: Path, find_columns: FindColumns, last: int | None) -> Cells:
    """All rows, or the last ones. Raises OSError or pa.ArrowException if it cannot be read."""
    with pq.ParquetFile(path) as file:  # a dataset would make columns of folder names
        header = file.schema_arrow.names
        places = find_columns([title.strip() for title in header])
        table = file.read(columns=[header[place] for place in sorted(set(places.values()))])
    first = 0 if last is None else max(0, len(table) - last)
    table = table.slice(first)
    columns = {name: _plainly(table.column(header[place])) for name, place in places.items()}
    titles = {name: header[place].strip() for name, place in places.items()}
    return Cells(titles, columns, "row", first + np.arange(len(table)))


def _plainly(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories as their values, and all types of text as one, trimmed."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    return pc.utf8_trim_whitespace(column) if pa.types.is_string(column.type) else column
