"""What was recognised in a file, in words: its vendor, columns, times and units, and what was left out."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS, ONE_VALUE
from kronos_model.bars.files.faults import counts_of
from kronos_model.bars.files.header import Cells, shown
from kronos_model.bars.files.options import ReadOptions
from kronos_model.bars.files.report import describe
from kronos_model.bars.files.table import CandleTable
from kronos_model.bars.files.vendors import PLAIN


def explain(
    cells: Cells, table: CandleTable, faults: NDArray[np.int8], options: ReadOptions
) -> Iterator[str]:
    """The lines of the explanation."""
    header, clock, vendor = cells.header, table.clock, cells.header.vendor or PLAIN
    source = f" (as in {vendor.source})" if vendor.source else ""
    by = "the order of its columns, which the values prove" if vendor.order else "its titles"
    yield f"form: {vendor.name}{source}, by {by}"
    if vendor.is_value:
        yield ONE_VALUE
    for place in dict.fromkeys(header.places.values()):
        names = [name for name, each in header.places.items() if each == place]
        title = header.titles[place] if header.num_rows else f"number {place + 1}"
        unit = f", in {vendor.units[names[0]]}" if names[0] in vendor.units else ""
        unit += ", left out: it has no number" if {*names} & {*COLUMNS} - {*table.columns} else ""
        yield f"{', '.join(names)}: column {shown(title)}{unit}"
    used = {"", *(header.titles[place] for place in header.places.values())}
    if unused := [title for title in dict.fromkeys(header.titles) if title not in used]:
        yield f"columns not used: {shown(', '.join(unused))}"
    if len(rows := np.flatnonzero(~np.isnat(clock.instants))):
        ends = [np.argmin(clock.instants[rows]), np.argmax(clock.instants[rows])]
        yield f"times: {' to '.join(clock.texts(rows[ends]))}"
    known = "the offsets in the file, or UTC for seconds since 1970" if clock.is_aware else "none in the file"
    if vendor.zone and not clock.is_aware:
        known += f"; it is that {vendor.zone}"
    yield f"zone: {known if clock.zone is None else f'{clock.zone}, as the file says'}"
    yield f"rows: {len(table):,}" + ("" if table.codes is None else f" of {len(table.names):,} instruments")
    if dropped := counts_of(faults):
        what = "left out" if options.drop_bad_rows else "refused if a forecast reads them"
        yield f"rows {what}: {describe(dropped)}"
    yield from cells.notes
