"""The cells of a file as all files have them: a row for each bar of an instrument, and plain numbers."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS, VOLUME
from kronos_model.bars.files.header import Cells
from kronos_model.bars.files.options import TIMES, ReadOptions
from kronos_model.bars.files.order import ordered
from kronos_model.bars.files.vendors import INSTRUMENT, SYMBOL

BLANKS: Final = pa.array(["", "null", "NULL", "None", "nan", "NaN", "NA", "N/A", "n/a", "#N/A", "-"])
"""What programs write into a cell without a value."""


def arranged(path: Path, cells: Cells, options: ReadOptions) -> Cells:
    """The cells by our names, without what only a vendor means.

    Raises:
        CandleFileError: the file has no titles, and its values do not prove which column is which.
    """
    if cells.header.vendor is None:
        cells = ordered(path, cells)
    if cells.header.tickers:
        cells = _below_each_other(cells)
    vendor = cells.header.vendor
    assert vendor is not None, "its order is proved"
    if vendor.rewrites:
        cells = _rewritten(cells, vendor.name, vendor.rewrites)
    if options.missing == "error" and (vendor.is_value or cells.header.tickers):
        cells = _without_blank_rows(cells)
    if cells.header.names_instruments and len(pc.unique(cells.columns[SYMBOL])) > 1:
        own = {SYMBOL: INSTRUMENT}
        places = {own.get(name, name): place for name, place in cells.header.places.items()}
        columns = {own.get(name, name): column for name, column in cells.columns.items()}
        return replace(cells, header=replace(cells.header, places=places), columns=columns)
    return cells


def _below_each_other(cells: Cells) -> Cells:
    """Tickers that stand side by side, with a column that names them."""
    tickers, titles, given = cells.header.tickers, cells.header.titles, cells.columns
    num_rows = len(given[TIMES])
    places = {name.rpartition(" ")[2]: place for name, place in [*cells.header.places.items()][::-1]}
    columns = {TIMES: pa.chunked_array(given[TIMES].chunks * len(tickers), given[TIMES].type)}
    for name in (name for name in COLUMNS if name in places):
        each = [given.get(f"{ticker} {name}", pa.chunked_array([pa.nulls(num_rows)])) for ticker in tickers]
        kind = pa.string() if any(pa.types.is_string(column.type) for column in each) else pa.float64()
        columns[name] = pa.chunked_array([part for column in each for part in column.cast(kind).chunks], kind)
    columns[SYMBOL] = pa.chunked_array([pa.array(np.repeat(tickers, num_rows))])
    places = {name: places.get(name, len(titles)) for name in columns}
    header = replace(cells.header, titles=(*titles, "Ticker"), places=places, names_instruments=True)
    parts = range(0, num_rows * len(tickers), max(num_rows, 1))
    overlong = {first + row: count for row, count in cells.overlong.items() for first in parts}
    count = partial(np.tile, cells.numbers, len(tickers))
    return replace(cells, header=header, columns=columns, overlong=overlong, count=count)


def _rewritten(cells: Cells, vendor: str, rewrites: Any) -> Cells:
    """The cells of numbers as plain numbers, and a note on volumes that mean none."""
    columns, notes = dict(cells.columns), list(cells.notes)
    for name in set(COLUMNS) & columns.keys():
        before = columns[name] if pa.types.is_string(columns[name].type) else columns[name].cast(pa.string())
        after = before
        for pattern, text in rewrites:
            after = pc.replace_substring_regex(after, pattern, text)
        if after.equals(before):  # numbers stay numbers: as texts they would decide the decimal sign
            continue
        columns[name] = after
        emptied = pc.and_(pc.equal(after, ""), pc.not_equal(before, ""))
        if name == COLUMNS[VOLUME] and (count := pc.sum(emptied).as_py()):
            cell = before.filter(emptied)[0].as_py()
            notes.append(
                f"bars with the volume {cell}, by which {vendor} means that there is none: {count:,}"
            )
    return replace(cells, columns=columns, notes=notes)


def _without_blank_rows(cells: Cells) -> Cells:
    """Without the rows that have no price at all, such as the holidays of one of several exchanges."""
    blank = reduce(pc.and_, (blank_cells(cells.columns[name]) for name in PRICE_COLUMNS))
    is_kept = ~np.asarray(blank.to_numpy())
    is_kept[list(cells.overlong)] = True
    if is_kept.all():
        return cells
    kept, numbers = np.flatnonzero(is_kept), cells.numbers
    columns: Mapping[str, Any] = {name: column.take(kept) for name, column in cells.columns.items()}
    overlong = {int(np.searchsorted(kept, row)): count for row, count in cells.overlong.items()}
    note = f"rows without a value, left out: {len(is_kept) - len(kept):,}"
    notes = [*cells.notes, note]
    return replace(cells, columns=columns, count=lambda: numbers[kept], overlong=overlong, notes=notes)


def blank_cells(column: pa.ChunkedArray) -> Any:
    """Which cells of a column hold nothing, an Arrow array of bools, (T,)."""
    is_empty = pc.is_null(column, nan_is_null=True)
    if not pa.types.is_string(column.type):
        return is_empty
    return pc.or_(is_empty, pc.is_in(column, BLANKS))
