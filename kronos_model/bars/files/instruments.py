"""All bars of many files, by instrument and in order, and a report on unusable rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS, FloatArray, to_bars
from kronos_model.bars.files.find import find_files
from kronos_model.bars.files.report import DataReport, describe, report_data, report_instrument
from kronos_model.bars.files.table import CandleTable, read_cells, to_table
from kronos_model.bars.instrument import Instrument
from kronos_model.bars.validation import defects_of
from kronos_model.errors import CandleFileError

REASON_OF_CODE: Final = {
    "NOT_FINITE": "not_a_number",
    "VALUE_TOO_LARGE": "value_too_large",
    "NON_POSITIVE_PRICE": "price_not_above_zero",
    "HIGH_BELOW_LOW": "high_below_low",
    "NEGATIVE_VOLUME": "negative_volume",
}
REASONS: Final = ("unreadable_time", *REASON_OF_CODE.values())
"""Reasons to drop a single row; the first that applies is counted."""
DUPLICATE_TIME: Final = "duplicate_time"
CHUNK_ROWS: Final = 65_536
"""Rows checked and converted at once: float64 copies of all rows would take several times the memory."""
SHOWN_REASONS: Final = 3
"""Files whose faults a message names if no file of a folder is usable."""
NO_INSTRUMENT: Final = "no_instrument"
TOO_MANY_CELLS: Final = "wrong_number_of_cells"


@dataclass(eq=False)
class _Gathered:
    """One instrument's bars, wall clocks and instants from all files, in the order of the files."""

    parts: list[tuple[FloatArray, NDArray[np.datetime64], NDArray[np.datetime64]]] = field(
        default_factory=list
    )
    files: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


def read_instruments(
    paths: Sequence[str], names: Mapping[str, str] | None = None
) -> tuple[list[Instrument], DataReport]:
    """The instruments with usable bars in these files and folders, sorted by name, and a report.

    A file without an instrument column is one instrument, named like the file without its suffix. If two
    files would get the same name, the parts of their folders that differ are added. The same name in the
    instrument columns of several files is one instrument. Volume and amount are filled in file by file, as
    ``to_bars`` does.

    Unusable rows are dropped and counted by reason. Rows out of order are sorted. Of rows with the same time
    the first is kept. Unusable files of a folder are skipped and reported if the folder has a usable one.

    Args:
        names: titles of columns in the files, if not our names; see ``find_columns``.

    Raises:
        CandleFileError: a file cannot be read or has no usable row, or some have offsets in their times and
            others have none.
    """
    files = find_files(paths)
    gathered: dict[str, _Gathered] = {}
    dropped_of_none: Counter[str] = Counter()
    unusable: dict[Path, CandleFileError] = {}
    is_aware: bool | None = None
    for (path, folder), name in zip(files.items(), _names_of(list(files)), strict=True):
        try:
            table, num_malformed = _read(path, names)
            dropped_of_none.update(_gather(table, num_malformed, path, name, gathered))
        except CandleFileError as error:
            if folder is None:
                raise
            unusable[path] = error
            continue
        if is_aware is None:
            is_aware = table.clock.is_aware
        elif table.clock.is_aware not in (None, is_aware):
            raise CandleFileError(
                f"{path} has times {'without' if is_aware else 'with'} an offset or zone, those before it "
                f"{'with' if is_aware else 'without'}: write all of them alike"
            )
        del table  # before the next one is read, or bars are put in order
    _check_skipped(files, unusable)
    pa.default_memory_pool().release_unused()  # pyarrow keeps it for further tables
    instruments: list[Instrument] = []
    reports = []
    for name in sorted(gathered):
        of_it = gathered.pop(name)  # frees the parts as soon as the instrument's bars are in order
        instrument, num_sorted = _in_order(name, of_it, bool(is_aware))
        reports.append(report_instrument(instrument, of_it.files, num_sorted, of_it.dropped))
        if len(instrument):
            instruments.append(instrument)
    skipped = {  # why, without the name of the file
        str(path): error.message.removeprefix(str(path)).lstrip(",: ") for path, error in unusable.items()
    }
    return instruments, report_data(instruments, reports, dropped_of_none, skipped)


def _read(path: Path, names: Mapping[str, str] | None) -> tuple[CandleTable, int]:
    """A file's table, and its number of rows with too many cells. Frees the texts on return."""
    cells = read_cells(path, names)
    return to_table(path, cells), len(cells.overlong)


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
    table: CandleTable, num_malformed: int, path: Path, name: str, gathered: dict[str, _Gathered]
) -> Counter[str]:
    """Add a file's usable rows. Returns the counts of rows that belong to no instrument."""
    reason = _reasons(table)  # (T,), 0 for a usable row
    names, codes = table.names, table.codes
    if codes is None:
        names, codes = (name,), np.zeros(len(table), dtype=np.int64)
    is_named = codes >= 0
    counts = np.zeros((len(names), len(REASONS) + 1), dtype=np.int64)  # the first of usable rows
    np.add.at(counts, (codes[is_named], reason[is_named]), 1)
    of_none = +Counter({NO_INSTRUMENT: int(np.sum(~is_named))})  # plus removes what is zero
    malformed = +Counter({TOO_MANY_CELLS: num_malformed})
    if not counts[:, 0].any():
        total = of_none + malformed + _by_reason(counts.sum(axis=0))
        why = f" of its rows, {describe(total)}" if total else " it is empty"
        text = f"{path} has no usable row:{why}. Write times like 2024-06-18T09:35:00+08:00"
        raise CandleFileError(text, details={"dropped": dict(total)})
    kept = np.flatnonzero(is_named & (reason == 0))
    kept = kept[np.argsort(codes[kept], kind="stable")]
    bars = np.empty((len(kept), len(COLUMNS)), dtype=np.float32)
    for start in range(0, len(kept), CHUNK_ROWS):
        rows = kept[start : start + CHUNK_ROWS]
        bars[start : start + len(rows)] = to_bars({name: each[rows] for name, each in table.columns.items()})
    wall, instants = table.clock.wall[kept], table.clock.instants[kept]
    ends = np.cumsum(counts[:, 0])
    for code, each in enumerate(names):
        its = slice(ends[code] - counts[code, 0], ends[code])
        of_it = gathered.setdefault(each, _Gathered())
        of_it.parts.append((bars[its], wall[its], instants[its]))
        of_it.files.append(str(path))
        of_it.dropped.update(_by_reason(counts[code]))
    if table.codes is not None:
        return of_none + malformed
    gathered[name].dropped.update(malformed)
    return of_none


def _by_reason(counts: NDArray[np.int64]) -> Counter[str]:
    return +Counter(dict(zip(REASONS, counts[1:].tolist(), strict=True)))


def _reasons(table: CandleTable) -> NDArray[np.int8]:
    """For each row the first reason that applies, from 1 in the order of ``REASONS``; 0 if usable."""
    reasons = np.isnat(table.clock.instants).astype(np.int8)
    for start in range(0, len(table), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        columns = {name: values[rows] for name, values in table.columns.items()}
        some = reasons[rows]
        with np.errstate(over="ignore", invalid="ignore"):  # the checks look for these
            for code, _, at_fault, _ in defects_of(columns):
                some[(some == 0) & at_fault] = REASONS.index(REASON_OF_CODE[code]) + 1
    return reasons


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


def _names_of(files: Sequence[Path]) -> list[str]:
    """A different name for each file."""
    absolute = [file.absolute() for file in files]
    num_alike = Counter(file.with_suffix("") for file in absolute)
    ends = [file.stem if num_alike[file.with_suffix("")] == 1 else file.name for file in absolute]
    names = ends
    for num_parts in range(2, max(len(file.parts) for file in absolute) + 1):
        counts = Counter(names)
        if len(counts) == len(names):
            break
        names = [
            name if counts[name] == 1 else "/".join([*file.parts[-num_parts:-1], end])
            for name, end, file in zip(names, ends, absolute, strict=True)
        ]
    return names
