"""The last bars of a file's instruments, in the order of time, for a forecast; and the file in words."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS, ONE_VALUE
from kronos_model.bars.files.faults import MAX_NAMED, counts_of, fault_of, find_faults
from kronos_model.bars.files.header import Cells, shown
from kronos_model.bars.files.options import NO_OPTIONS, TIMES, ReadOptions
from kronos_model.bars.files.report import describe
from kronos_model.bars.files.table import CandleTable, read_table
from kronos_model.bars.files.vendors import INSTRUMENT, PLAIN
from kronos_model.bars.missing import Filled, Missing
from kronos_model.bars.timestamps import load_timezone, parse_timestamps
from kronos_model.errors import CandleFileError


@dataclass(frozen=True, eq=False)
class Lookback:
    """The last bars of one instrument.

    Attributes:
        name: the instrument; empty without an instrument column.
        candles: ``timestamps`` as ISO 8601 texts, in CSV the way the file has them if it has such, then the
            prices and, if the file has them, ``volume`` and ``amount`` as float64.
        timezone: the IANA zone that the file names for its times.
        unit, numbers: the line or row of the file that each bar comes from, (T,).
        dropped: the rows that were left out, by reason.
        bad_rows: what is wrong with the first of these, as messages.
        notes: warnings about the file as a whole.
    """

    name: str
    candles: pd.DataFrame
    timezone: str | None
    unit: str
    numbers: NDArray[np.int64]
    dropped: Mapping[str, int]
    bad_rows: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def warnings(self) -> list[str]:
        """What was left out, in one line, and the notes."""
        left_out = [f"rows left out: {describe(self.dropped)}; {self.bad_rows[0]}"] if self.dropped else []
        return [*left_out, *self.notes]

    def settled(self, how: Missing) -> tuple[pd.DataFrame, list[str]]:
        """The candles with missing bars filled or left out, and warnings with counts; see ``Filled``.

        Raises KronosError if they are no series.
        """
        given = {str(title): self.candles[title].to_numpy() for title in self.candles if title != TIMES}
        filled = Filled.from_columns(given, how)
        zone = None if self.timezone is None else load_timezone(self.timezone)
        columns, times, warnings = filled.settled(parse_timestamps(self.candles[TIMES].tolist()), how, zone)
        return pd.DataFrame({TIMES: times.texts, **columns}), warnings


class CandleFile:
    """A candle file, read whole.

    Attributes:
        instruments: the names in its instrument column, sorted; one empty name without such a column.

    Raises:
        CandleFileError: the file cannot be read, lacks a column, or has no rows.
    """

    def __init__(self, path: Path, options: ReadOptions = NO_OPTIONS) -> None:
        self.path, self._options = path, options
        self._cells, self._table = read_table(path, options)
        if not len(self._table):
            raise CandleFileError(f"{path} has a header and no rows")
        codes, num = self._table.codes, len(self._table.names)
        if codes is not None and num > 1 and np.bincount(codes[codes >= 0]).max() == 1:
            text = f"{path} is too short for a forecast: it has one bar of each of its {num:,} instruments"
            raise CandleFileError(f"{text}. Write the files of several days below each other")
        self._faults = find_faults(self._cells, self._table, options)
        self.instruments = tuple(sorted(self._table.names)) if codes is not None else ("",)

    def explanation(self) -> list[str]:
        """What was recognised in the file, which column became what, and what was left out."""
        return list(_explain(self._cells, self._table, self._faults, self._options))

    def last(self, max_bars: int, instrument: str | None = None) -> Lookback:
        """The last bars of an instrument; by default of the first one.

        Unless the option ``missing`` is "error", bars without prices are among them; see ``settled``.

        Raises:
            CandleFileError: One of these rows is unusable, unless such rows are dropped; or all are.
        """
        name = self.instruments[0] if instrument is None else instrument
        own, of_none = self._rows_of(name)
        own = own[_order(self._table.clock.instants[own])]
        if not self._options.drop_bad_rows:
            own = own[-max_bars:]
        bad = np.sort(np.concatenate([own, of_none]))
        bad = bad[self._faults[bad] > 0]
        if len(bad) and not self._options.drop_bad_rows:
            raise self._error(int(bad[0]))
        own = own[self._faults[own] == 0][-max_bars:]
        dropped = counts_of(self._faults[bad])
        if not len(own):
            text = f"{self.path} has no usable row: of its rows, {describe(dropped)}"
            raise CandleFileError(text, details={"dropped": dict(dropped)})
        columns = {name: values[own] for name, values in self._table.columns.items()}
        return Lookback(
            name,
            pd.DataFrame({TIMES: self._table.clock.texts(own), **columns}),
            self._table.clock.zone,
            self._cells.unit,
            self._cells.numbers[own],
            dropped,
            tuple(self._error(row).message for row in bad[:MAX_NAMED].tolist()),
            tuple(self._cells.notes),
        )

    def _rows_of(self, instrument: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The instrument's rows, and those that belong to none."""
        if self._table.codes is None:
            return np.arange(len(self._table)), np.arange(0)
        if instrument not in self._table.names:
            known = shown(", ".join(self.instruments))
            text = f"{self.path} has no instrument {shown(instrument)!r}; it has {known}"
            raise CandleFileError(text, field=INSTRUMENT)
        parts = self._rows_by_code
        return parts[1 + self._table.names.index(instrument)], parts[0]

    @cached_property
    def _rows_by_code(self) -> list[NDArray[np.int64]]:
        """The rows of no instrument, then those of each."""
        assert self._table.codes is not None, "the file has an instrument column"
        order = np.argsort(self._table.codes, kind="stable")
        ends = np.searchsorted(self._table.codes[order], np.arange(len(self._table.names)))
        return np.split(order, ends)

    def _error(self, row: int) -> CandleFileError:
        return fault_of(self.path, self._cells, self._table, row, int(self._faults[row]))


def _order(instants: NDArray[np.datetime64]) -> NDArray[np.int64]:
    """The order by time. A row without a time stays next to its neighbours."""
    times = instants[~np.isnat(instants)]
    is_newest_first = len(times) > 0 and times[0] > times[-1]
    order = np.arange(len(instants))[:: -1 if is_newest_first else 1]
    filled = pd.Series(instants[order]).ffill().bfill().to_numpy()
    return order[np.argsort(filled, kind="stable")]


def _explain(
    cells: Cells, table: CandleTable, faults: NDArray[np.int8], options: ReadOptions
) -> Iterator[str]:
    """The file in words: its vendor, columns, times and units, and what was left out."""
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
