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
    header, clock = cells.header, table.clock
    vendor = header.vendor or PLAIN
    source = f" (as in {vendor.source})" if vendor.source else ""
    by = "the order of its columns, which the values prove" if vendor.order else "its titles"
    yield f"form: {vendor.name}{source}, by {by}"
    if vendor.is_value:
        yield ONE_VALUE
    for place in dict.fromkeys(header.places.values()):
        names = [name for name, each in header.places.items() if each == place]
        title = header.titles[place] if header.num_rows else f"number {place + 1}"
        unit = f", in {vendor.units[names[0]]}" if names[0] in vendor.units else ""
        if names[0] in COLUMNS and names[0] not in table.columns:
            unit += ", left out: it has no number"
        yield f"{', '.join(names)}: column {shown(title)}{unit}"
    used = {header.titles[place] for place in header.places.values()}
    if unused := [title for title in dict.fromkeys(header.titles) if title and title not in used]:
        yield f"columns not used: {shown(', '.join(unused))}"
    rows = np.flatnonzero(~np.isnat(clock.instants))
    if len(rows):
        first, last = clock.texts(rows[[np.argmin(clock.instants[rows]), np.argmax(clock.instants[rows])]])
        form = options.date_format or vendor.date_format
        yield f"times: {first} to {last}" + (f", read as {form}" if form else "")
    if clock.zone is not None:
        yield f"zone: {clock.zone}, as the file says"
    elif clock.is_aware:
        yield "zone: the offsets in the file, or UTC for seconds since 1970"
    else:
        yield "zone: none in the file" + (f"; it is that {vendor.zone}" if vendor.zone else "")
    several = f" of {len(table.names):,} instruments" if table.codes is not None else ""
    yield f"rows: {len(table):,}{several}"
    if dropped := counts_of(faults):
        what = "left out" if options.drop_bad_rows else "refused if a forecast reads them"
        yield f"rows {what}: {describe(dropped)}"
    yield from cells.notes
