"""The last bars of a file, for a forecast: every cell must be usable."""

from pathlib import Path

import numpy as np
import pandas as pd

from kronos_model.bars.files.cells import Cells, shown
from kronos_model.bars.files.clock import time_texts
from kronos_model.bars.files.header import TIME_OF_DAY, TIMES
from kronos_model.bars.files.table import CandleTable, read_cells, times_of, to_table
from kronos_model.errors import CandleFileError


def read_candles(path: Path, max_bars: int) -> pd.DataFrame:
    """The last ``max_bars`` rows of a file: Parquet by its name, else CSV.

    Returns:
        ``timestamps`` as ISO 8601 texts, in CSV the way the file has them, then the prices and, if the file
        has them, ``volume`` and ``amount`` as float64.

    Raises:
        CandleFileError: the file cannot be read, lacks a column, or has a cell that is no time or no number.
    """
    cells = read_cells(path, last=max_bars)
    if not len(cells.columns[TIMES]) and not cells.overlong:
        raise CandleFileError(f"{path} has a header and no rows")
    table = to_table(path, cells)
    _check_cells(path, cells, table)
    return pd.DataFrame({TIMES: time_texts(times_of(cells)), **table.columns})


def _check_cells(path: Path, cells: Cells, table: CandleTable) -> None:
    """Refuse the first row that has too many cells or an unusable one."""
    assert cells.numbers is not None, "lines are counted if only the last rows are read"
    is_defect = np.stack(  # (columns, T)
        [np.isnat(table.clock.wall), *(~np.isfinite(values) for values in table.columns.values())]
    )
    rows = np.flatnonzero(is_defect.any(axis=0))
    number = int(cells.numbers[rows[0]]) if len(rows) else None
    if cells.overlong and (number is None or cells.overlong[0][0] < number):
        line, num_cells = cells.overlong[0]
        text = f"{path}, line {line}: there are {num_cells} cells, more than in the header"
        raise CandleFileError(text, details={"line": line})
    if number is None:
        return
    row = int(rows[0])
    name = [TIMES, *table.columns][int(np.argmax(is_defect[:, row]))]
    cell = cells.columns[name][row].as_py()
    if name == TIMES and TIME_OF_DAY in cells.columns:
        cell = " ".join(str(part) for part in (cell, cells.columns[TIME_OF_DAY][row].as_py()) if part)
    title = cells.titles[name]
    found = "nothing" if cell == "" or pd.isna(cell) else f"'{shown(str(cell))}'"
    wanted = "a time like 2024-06-18 11:15:00" if name == TIMES else "a number"
    text = f"{path}, {cells.unit} {number}, column {shown(title)}: there is {found} where {wanted} is needed"
    raise CandleFileError(text, field=title, details={cells.unit: number})
