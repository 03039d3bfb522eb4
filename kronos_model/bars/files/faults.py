"""Rows of a file that cannot be used: which, why, and how each is named."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kronos_model.bars.columns import (
    IMPOSSIBLE,
    ONE_VALUE,
    PRICE_COLUMNS,
    RATES,
    defects_of,
    impossible_prices,
)
from kronos_model.bars.files.arrangement import blank_cells
from kronos_model.bars.files.content import CUT
from kronos_model.bars.files.header import Cells, shown
from kronos_model.bars.files.options import TIME_OF_DAY, TIMES, ReadOptions
from kronos_model.bars.files.table import CandleTable
from kronos_model.bars.files.vendors import INSTRUMENT
from kronos_model.bars.missing import is_missing
from kronos_model.errors import BadRow, NoPrices, RepeatedTime

REASON_OF_CODE: Final = {
    "NOT_FINITE": "not_a_number",
    "VALUE_TOO_LARGE": "value_too_large",
    "NON_POSITIVE_PRICE": "price_not_above_zero",
    "HIGH_BELOW_LOW": "high_below_low",
    "NEGATIVE_VOLUME": "negative_volume",
    IMPOSSIBLE: "outside_low_to_high",
}
CODES_OF_MISSING: Final = ("NOT_FINITE", "NON_POSITIVE_PRICE")
TOO_MANY_CELLS: Final = "wrong_number_of_cells"
NO_INSTRUMENT: Final = "no_instrument"
NO_TIME: Final = "unreadable_time"
DUPLICATE_TIME: Final = "duplicate_time"
REASONS: Final = (TOO_MANY_CELLS, NO_INSTRUMENT, NO_TIME, *REASON_OF_CODE.values(), DUPLICATE_TIME)
"""Reasons not to use a row; the first that applies is counted."""
MAX_NAMED: Final = 20
"""Bad rows that are named one by one; all are counted."""
CHUNK_ROWS: Final = 65_536
"""Rows checked and converted at once: float64 copies of all rows would take several times the memory."""


def find_faults(cells: Cells, table: CandleTable, options: ReadOptions) -> NDArray[np.int8]:
    """For each row the first reason that applies, from 1 in the order of ``REASONS``; 0 if usable."""
    faults = np.zeros(len(table), dtype=np.int8)
    faults[np.isnat(table.clock.instants)] = _fault(NO_TIME)
    if table.codes is not None:
        faults[table.codes < 0] = _fault(NO_INSTRUMENT)
    faults[list(cells.overlong)] = _fault(TOO_MANY_CELLS)
    for start in range(0, len(table), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        some = faults[rows]
        with np.errstate(over="ignore", invalid="ignore"):  # the checks look for these
            for code, _, at_fault, _ in _defects(table, rows, options):
                some[(some == 0) & at_fault] = _fault(REASON_OF_CODE[code])
    if options.missing != "error":
        faults[_without_prices(cells, table, faults)] = 0
    usable = np.flatnonzero(faults == 0)
    faults[usable[_repeats(table, usable)]] = _fault(DUPLICATE_TIME)
    return faults


def _without_prices(cells: Cells, table: CandleTable, faults: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Rows whose only fault is that prices are blank, or zero without volume."""
    found = is_missing(table.columns)
    found &= np.isin(faults, [_fault(REASON_OF_CODE[code]) for code in CODES_OF_MISSING])
    for name in PRICE_COLUMNS:  # a cell that is no number is a mistake
        found &= ~np.isnan(table.columns[name]) | blank_cells(cells.columns[name]).to_numpy()
    return found


def counts_of(faults: NDArray[np.int8]) -> Counter[str]:
    """The unusable rows, by reason."""
    counts = np.bincount(faults, minlength=len(REASONS) + 1)
    return +Counter(dict(zip(REASONS, counts[1:].tolist(), strict=True)))  # plus removes what is zero


def fault_of(path: Path, cells: Cells, table: CandleTable, row: int, fault: int) -> BadRow:
    """The error about an unusable row, which names its line and the column."""
    number, reason = int(cells.numbers[row]), REASONS[fault - 1]
    readable = np.flatnonzero(~np.isnat(table.clock.instants))
    like = shown(str(_cell(cells, TIMES, int(readable[0])))) if len(readable) else "2024-06-18 11:15:00"
    name, text = TIMES, f"there is {{}} where a time like {like} is needed"
    if reason == TOO_MANY_CELLS:
        num_cells, num_titles = cells.overlong[row], len(cells.header.titles)
        text = f"there are {num_cells} cells, more than in the header"
        if num_cells < num_titles:
            text = f"the file is cut in its last line, after {num_cells} of {num_titles} cells: {CUT}"
        return BadRow(f"{path}, {cells.unit} {number}: {text}", details={cells.unit: number})
    if reason == NO_INSTRUMENT:
        name, text = INSTRUMENT, "there is {} where the name of an instrument is needed"
    elif reason == DUPLICATE_TIME:
        text = "there is {} for the second time: keep one of these bars, write times with offsets if an hour "
        text += "repeats as clocks go back, or name the column of instruments if the file has several"
    elif reason == REASON_OF_CODE["NOT_FINITE"]:
        name = next(name for name, values in table.columns.items() if not np.isfinite(values[row]))
        text = "there is {} where a number is needed"
    elif reason != NO_TIME:
        found = _defects(table, slice(row, row + 1), ReadOptions(reject_impossible=True))
        name, defect = next((name, text) for code, name, at_fault, text in found if at_fault[0])
        text = f"{{}} {defect}"
    cell = _cell(cells, name, row)
    title = cells.titles[name]
    found_there = "nothing" if cell == "" or pd.isna(cell) else f"'{shown(str(cell))}'"
    message = f"{path}, {cells.unit} {number}, column {shown(title)}: {text.format(found_there)}"
    if reason == REASON_OF_CODE["NON_POSITIVE_PRICE"] and cells.header.is_value:
        message += f": {RATES}"
    is_gone = _without_prices(cells, table, np.where(np.arange(len(table)) == row, fault, 0))[row]
    kind = NoPrices if is_gone else RepeatedTime if reason == DUPLICATE_TIME else BadRow
    return kind(message, field=title, details={cells.unit: number})


def _cell(cells: Cells, name: str, row: int) -> Any:
    """The cell of a column; of times, both parts if the time of day has its own."""
    cell = cells.columns[name][row].as_py()
    if name == TIMES and TIME_OF_DAY in cells.columns:
        return " ".join(str(part) for part in (cell, cells.columns[TIME_OF_DAY][row].as_py()) if part)
    return cell


@dataclass
class Findings:
    """What is wrong with the rows of several files.

    Attributes:
        of_none: unusable rows that belong to no instrument, by reason.
        bad_rows: what is wrong with the first unusable rows, as messages.
        warnings: candles whose open or close lies outside low to high, one message a file.
    """

    of_none: Counter[str] = field(default_factory=Counter)
    bad_rows: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(
        self, path: Path, cells: Cells, table: CandleTable, faults: NDArray[np.int8], options: ReadOptions
    ) -> None:
        """Add a file. Raises BadRow at its first unusable row, unless such rows are dropped."""
        rows = np.flatnonzero(faults)
        if len(rows) and not options.drop_bad_rows:
            raise fault_of(path, cells, table, int(rows[0]), int(faults[rows[0]]))
        for row in rows[: MAX_NAMED - len(self.bad_rows)].tolist():
            self.bad_rows.append(fault_of(path, cells, table, row, int(faults[row])).message)
        if table.codes is not None:
            self.of_none.update(counts_of(faults[table.codes < 0]))
        is_impossible = reduce(np.logical_or, (found for _, _, found, _ in impossible_prices(table.columns)))
        notes = [*cells.notes, *([ONE_VALUE] if cells.header.is_value else [])]
        self.warnings += [f"{path}: {note}" for note in notes]
        if len(rows := np.flatnonzero(is_impossible & (faults == 0))):
            error = fault_of(path, cells, table, int(rows[0]), _fault(REASON_OF_CODE[IMPOSSIBLE]))
            self.warnings.append(f"{error.message}; {len(rows):,} of its bars have such prices")


def _fault(reason: str) -> int:
    return REASONS.index(reason) + 1


def _defects(
    table: CandleTable, rows: slice, options: ReadOptions
) -> Iterator[tuple[str, str, NDArray[np.bool_], str]]:
    columns: Mapping[str, NDArray[np.float64]] = {name: each[rows] for name, each in table.columns.items()}
    yield from defects_of(columns)
    if options.reject_impossible:
        yield from impossible_prices(columns)


def _repeats(table: CandleTable, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether an earlier one of these rows has the same instrument and time."""
    instants = table.clock.instants[rows]
    codes = np.zeros(len(rows), dtype=np.int64) if table.codes is None else table.codes[rows]
    if table.codes is None and np.all(instants[1:] > instants[:-1]):
        return np.zeros(len(rows), dtype=np.bool_)
    order = np.lexsort((instants, codes))  # stable
    repeats = np.zeros(len(rows), dtype=np.bool_)
    same = (instants[order][1:] == instants[order][:-1]) & (codes[order][1:] == codes[order][:-1])
    repeats[order[1:][same]] = True
    return repeats
