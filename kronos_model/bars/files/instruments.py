"""All bars of many files, by instrument and in order, and a report on unusable rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS, RATES, FloatArray, Instrument, to_bars
from kronos_model.bars.files.faults import (
    CHUNK_ROWS,
    DUPLICATE_TIME,
    NO_TIME,
    REASON_OF_CODE,
    Findings,
    counts_of,
    find_faults,
)
from kronos_model.bars.files.find import distinct_names, find_files
from kronos_model.bars.files.options import NO_OPTIONS, ReadOptions
from kronos_model.bars.files.report import DataReport, describe, report_data, report_instrument
from kronos_model.bars.files.table import CandleTable, read_table
from kronos_model.bars.missing import Missing, filled_instrument, is_missing
from kronos_model.errors import CandleFileError

NO_PRICES: Final = "without_prices"
SHOWN_REASONS: Final = 3
"""Files whose faults a message names if no file of a folder is usable."""


@dataclass(eq=False)
class _Gathered:
    """One instrument's bars, wall clocks and instants from all files, in the order of the files."""

    parts: list[tuple[FloatArray, NDArray[np.datetime64], NDArray[np.datetime64]]] = field(
        default_factory=list
    )
    files: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


def read_instruments(
    paths: Sequence[str], options: ReadOptions = NO_OPTIONS
) -> tuple[list[Instrument], DataReport]:
    """The instruments with usable bars in these files and folders, sorted by name, and a report.

    A file without an instrument column is one instrument, named like the file without its suffix. If two
    files would get the same name, the parts of their folders that differ are added. The same name in the
    instrument columns of several files is one instrument. Volume and amount are filled in file by file, as
    ``to_bars`` does.

    Rows out of order are sorted. Of rows of several files with the same time, the first is kept. Unusable
    files of a folder are skipped and reported if the folder has a usable one.

    Raises:
        CandleFileError: a file cannot be read or has no usable row; it has an unusable row, and such rows are
            not dropped; or some files have offsets in their times and others have none.
    """
    files = find_files(paths)
    gathered: dict[str, _Gathered] = {}
    found = Findings()
    unusable: dict[Path, CandleFileError] = {}
    is_aware: bool | None = None
    for (path, folder), name in zip(files.items(), distinct_names(list(files)), strict=True):
        try:
            cells, table = read_table(path, options)
            faults = find_faults(cells, table, options)
            _check_usable(path, faults)
        except CandleFileError as error:
            if folder is None:
                raise
            unusable[path] = error
            continue
        found.add(path, cells, table, faults, options)
        _gather(table, faults, path, name, gathered, options.missing)
        if is_aware is None:
            is_aware = table.clock.is_aware
        elif table.clock.is_aware not in (None, is_aware):
            raise CandleFileError(
                f"{path} has times {'without' if is_aware else 'with'} an offset or zone, those before it "
                f"{'with' if is_aware else 'without'}: write all of them alike"
            )
        del cells, table  # before the next one is read, or bars are put in order
    _check_skipped(files, unusable)
    pa.default_memory_pool().release_unused()  # pyarrow keeps it for further tables
    instruments: list[Instrument] = []
    reports = []
    for name in sorted(gathered):
        of_it = gathered.pop(name)  # frees the parts as soon as the instrument's bars are in order
        instrument, num_sorted = _in_order(name, of_it, bool(is_aware))
        num_filled = 0
        if options.missing == "ffill":
            instrument, num_filled = filled_instrument(instrument)
        reports.append(report_instrument(instrument, of_it.files, num_sorted, num_filled, +of_it.dropped))
        if len(instrument):
            instruments.append(instrument)
    skipped = {  # why, without the name of the file
        str(path): error.message.removeprefix(str(path)).lstrip(",: ") for path, error in unusable.items()
    }
    return instruments, report_data(instruments, reports, found, skipped)


def _check_usable(path: Path, faults: NDArray[np.int8]) -> None:
    if np.all(faults > 0):
        dropped = counts_of(faults)
        why = f" of its rows, {describe(dropped)}" if dropped else " it is empty"
        hint = ". Write times like 2024-06-18T09:35:00+08:00" if NO_TIME in dropped else ""
        hint = f": {RATES}" if {*dropped} == {REASON_OF_CODE["NON_POSITIVE_PRICE"]} else hint
        text = f"{path} has no usable row:{why}{hint}"
        raise CandleFileError(text, details={"dropped": dict(dropped)})


def _check_skipped(files: Mapping[Path, Path | None], unusable: Mapping[Path, CandleFileError]) -> None:
    """Refuse a folder without a usable file."""
    by_folder: dict[Path, list[Path]] = {}
    for file, folder in files.items():
        if folder is not None:
            by_folder.setdefault(folder, []).append(file)
    for folder, found in by_folder.items():
        errors = [unusable[file] for file in found if file in unusable]
        if len(errors) < len(found):
            continue
        if len(errors) == 1:
            raise errors[0]
        first = "; ".join(error.message[:400] for error in errors[:SHOWN_REASONS])
        common_field = Counter(error.field for error in errors).most_common(1)[0][0]
        text = f"none of the {len(errors):,} files in {folder} can be used: {first}"
        raise CandleFileError(text, field=common_field)


def _gather(
    table: CandleTable,
    faults: NDArray[np.int8],
    path: Path,
    name: str,
    gathered: dict[str, _Gathered],
    missing: Missing,
) -> None:
    """Add a file's usable rows. Those without prices are left out, or are NaN for ``_in_order`` to fill."""
    names, codes = table.names, table.codes
    if codes is None:
        names, codes = (name,), np.zeros(len(table), dtype=np.int64)
    is_gone = np.zeros(len(table), dtype=bool) if missing == "error" else is_missing(table.columns)
    is_gone &= faults == 0
    kept = np.flatnonzero((faults == 0) & ~is_gone if missing == "drop" else faults == 0)
    kept = kept[np.argsort(codes[kept], kind="stable")]
    bars = np.empty((len(kept), len(COLUMNS)), dtype=np.float32)
    for start in range(0, len(kept), CHUNK_ROWS):
        rows = kept[start : start + CHUNK_ROWS]
        bars[start : start + len(rows)] = to_bars({name: each[rows] for name, each in table.columns.items()})
    bars[is_gone[kept]] = np.nan
    wall, instants = (each[kept].astype("datetime64[s]") for each in (table.clock.wall, table.clock.instants))
    ends = np.searchsorted(codes[kept], np.arange(len(names)), side="right")
    for code, each in enumerate(names):
        its = slice(ends[code - 1] if code else 0, ends[code])
        of_it = gathered.setdefault(each, _Gathered())
        of_it.parts.append((bars[its], wall[its], instants[its]))
        of_it.files.append(str(path))
        of_it.dropped.update(counts_of(faults[codes == code]))
        if missing == "drop":
            of_it.dropped[NO_PRICES] += int(is_gone[codes == code].sum())


def _in_order(name: str, gathered: _Gathered, is_aware: bool) -> tuple[Instrument, int]:
    """The instrument, and how many of its rows came after a later one."""
    bars, wall, instants = (np.concatenate(parts) for parts in zip(*gathered.parts, strict=True))
    num_sorted = int(np.sum(instants < np.maximum.accumulate(instants)))
    if num_sorted:
        order = np.argsort(instants, kind="stable")
        bars, wall, instants = bars[order], wall[order], instants[order]
    is_first = np.ones(len(instants), dtype=bool)
    is_first[1:] = instants[1:] > instants[:-1]
    if num_duplicates := int(np.sum(~is_first)):
        gathered.dropped[DUPLICATE_TIME] += num_duplicates
        bars, wall, instants = bars[is_first], wall[is_first], instants[is_first]
    return Instrument(name, bars, wall, instants, is_aware), num_sorted
