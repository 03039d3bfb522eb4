"""The forecasts of a backtest on disk: whatever stops a run, the next one finds what was done."""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.atomic_write import not_written
from kronos_model.bars.columns import CLOSE, COLUMNS, FloatArray
from kronos_model.forecast import path_quantiles

FILE: Final = "forecasts.sqlite"
TABLES: Final = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS forecasts (model INTEGER, window INTEGER, num_paths INTEGER, closes BLOB,
    quantiles BLOB, PRIMARY KEY (model, window));
"""
LEVELS: Final = (0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95)
"""Quantile levels stored for each column. All paths of the close are stored."""
PARTS: Final = ("anchor", "scale", "actual", *(f"q{level}" for level in LEVELS))
"""What forecasts.parquet has of each column, such as ``close_anchor``."""


def earlier_lookback(folder: Path) -> int | None:
    """The lookback of the backtest that a folder holds, if it holds one."""
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{(folder / FILE).absolute().as_uri()}?mode=ro", uri=True)) as database,
    ):
        rows = database.execute("SELECT value FROM about WHERE name = 'lookback'").fetchall()
        return int(rows[0][0]) if rows else None
    return None


class ForecastStore:
    """One SQLite file in ``folder``, with the sampled closes and all quantiles of each window and model.

    Raises:
        JobError: INVALID_INPUT if the folder has a backtest with another fingerprint, DISK_FULL if it cannot
            be written.
    """

    def __init__(self, folder: Path, fingerprint: str, *, fresh: bool = False) -> None:
        """``fresh``: whether to delete what is there."""
        self._path = folder / FILE
        with self._disk_errors():
            folder.mkdir(parents=True, exist_ok=True)
            if fresh:
                self._path.unlink(missing_ok=True)
            self._database = sqlite3.connect(self._path, check_same_thread=False)
            self._database.executescript(TABLES)
            known = self.about("fingerprint", fingerprint)
        if known != fingerprint:
            self.close()
            raise JobError(
                ErrorCode.INVALID_INPUT,
                f"{folder} holds a backtest of other candles or options: choose another folder, "
                "or fresh=True to begin anew",
                "output",
            )

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def about(self, name: str, value: Any) -> Any:
        """The value stored first under a name, which is this one if there was none."""
        with self._disk_errors(), self._database:
            self._database.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (name, json.dumps(value)))
            rows = self._database.execute("SELECT value FROM about WHERE name = ?", (name,))
            return json.loads(rows.fetchone()[0])

    def put(self, model: int, forecasts: Iterable[tuple[int, FloatArray]]) -> None:
        """Store all or none of some windows' paths, each (S, H, 6)."""
        rows = [
            (model, window, len(paths), _bytes(paths[..., CLOSE]), _bytes(path_quantiles(paths, LEVELS)))
            for window, paths in forecasts
        ]
        with self._disk_errors(), self._database:
            self._database.executemany("INSERT OR REPLACE INTO forecasts VALUES (?, ?, ?, ?, ?)", rows)

    def done(self, model: int) -> set[int]:
        """The windows that have a forecast."""
        rows = self._database.execute("SELECT window FROM forecasts WHERE model = ?", (model,))
        return {window for (window,) in rows}

    def closes(self, model: int, windows: Iterable[int]) -> Iterator[FloatArray]:
        """The sampled closes of these windows, in their order, each (S, H)."""
        for num_paths, values in self._read("num_paths, closes", model, windows):
            yield np.frombuffer(values, dtype="<f4").reshape(num_paths, -1)

    def quantiles(self, model: int, windows: Iterable[int]) -> Iterator[FloatArray]:
        """The quantiles of these windows, in their order, each (num_levels, H, 6)."""
        for (values,) in self._read("quantiles", model, windows):
            yield np.frombuffer(values, dtype="<f4").reshape(len(LEVELS), -1, len(COLUMNS))

    def _read(self, columns: str, model: int, windows: Iterable[int]) -> Iterator[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM forecasts WHERE model = ? AND window = ?"
        for window in windows:
            with closing(self._database.execute(query, (model, window))) as rows:
                yield rows.fetchone()

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise JobError(ErrorCode.DISK_FULL, not_written(self._path, error), "output") from error


def _bytes(values: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(values, dtype="<f4").tobytes()
