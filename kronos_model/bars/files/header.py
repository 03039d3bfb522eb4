"""A file's columns: which is which, by their titles, and their cells.

Case, and spaces around a title, do not count.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import AMOUNT, COLUMNS, PRICE_COLUMNS, TIME_COLUMNS, VOLUME
from kronos_model.bars.files.options import TIMES, ReadOptions
from kronos_model.errors import CandleFileError
from kronos_model.text import printable

MAX_SHOWN_CHARS: Final = 300
TIME_OF_DAY: Final = "time"
"""The column of times of day, if ``TIMES`` has only dates."""
INSTRUMENT: Final = "instrument"
SYMBOL: Final = "symbol"
"""A column that may name each row's instrument, if the options do not say which one does."""
SYMBOL_TITLES: Final = ("unique_id", "item_id", "symbol", "ticker", "instrument", "code")
HEADER_ROWS: Final = 3
"""The most rows before the first bar."""
UNNAMED_INDEX: Final = ("__index_level_0__", "", "Unnamed: 0")
"""Titles of pandas' unnamed index: in Parquet, in CSV, and in CSV that was read and written again."""
TIME_TITLES: Final = (*TIME_COLUMNS, "open_time", "open time", "ds")
TITLES: Final = {
    COLUMNS[VOLUME]: ("volume", "tickvol", "vol"),  # MetaTrader has two; that of ticks is never blank
    COLUMNS[AMOUNT]: ("amount", "quote_asset_volume", "quote_volume"),
}
"""Titles of vendors for one column, the likeliest first."""
KLINES: Final = (
    "open_time", "open", "high", "low", "close", "volume", "close_time", "quote_asset_volume", "count",
    "taker_buy_volume", "taker_buy_quote_volume", "ignore",
)  # fmt: skip
"""The columns of Binance's files, which may have no header."""
_NUMBER: Final = re.compile(r"[+-]?[0-9][0-9.,]*")


@dataclass(frozen=True)
class Header:
    """The meaning of a file's columns.

    Attributes:
        titles: of all columns, without spaces and angle brackets around them.
        places: the positions of the used columns, by our names.
        num_rows: rows before the first bar.
    """

    titles: Sequence[str]
    places: Mapping[str, int]
    num_rows: int = 1

    @property
    def used_titles(self) -> dict[str, str]:
        return {name: self.titles[place] for name, place in self.places.items()}


ReadHeader = Callable[[Sequence[Sequence[str]]], Header]
"""Reads the header in the first rows of a file."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The used columns of a file, in the order of its rows.

    Attributes:
        titles: the file's title of each column, by our names.
        columns: pyarrow arrays of T cells, by our names. Texts have no spaces around them.
        unit: the unit of row numbers in errors: lines of a CSV file from 1, rows of a Parquet file from 0.
        count: returns the line or row of each, (T,).
        overlong: the number of cells of each row with more cells than the header. Its own cells are empty.
        separator: what stands between the cells of a CSV file.
    """

    titles: Mapping[str, str]
    columns: Mapping[str, Any]
    unit: Literal["line", "row"]
    count: Callable[[], NDArray[np.int64]]
    overlong: Mapping[int, int] = field(default_factory=dict)
    separator: str | None = None

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The line or row of each row, counted only if needed."""
        return self.count()


def shown(text: str) -> str:
    """The start of a text from a file, safe to print on a terminal."""
    return printable(text[:MAX_SHOWN_CHARS])


def read_header(path: Path, rows: Sequence[Sequence[str]], options: ReadOptions) -> Header:
    """The header in a file's first rows.

    The column of times is the first of ``TIME_TITLES`` that the file has, else pandas' unnamed index. A
    column ``time`` belongs to ``date``.

    Raises:
        CandleFileError: a column is missing, or several differ in case only. ``field`` is our name for it.
    """
    titles, num_rows = [_plain(title) for title in rows[0]], 1
    if len(rows[0]) == len(KLINES) and all(map(_NUMBER.fullmatch, rows[0])):
        titles, num_rows = list(KLINES), 0
    elif sum(map(bool, map(_NUMBER.fullmatch, rows[0]))) >= len(PRICE_COLUMNS):
        raise CandleFileError(f"{path} has no header, line 1 holds numbers: add a line with the titles")
    elif len(rows) > 1 and rows[1] and _plain(rows[1][0]).lower() in ("ticker", ""):
        titles, num_rows = _without_tickers(path, titles, rows)
    places: dict[str, int] = {}
    for name in (TIMES, *COLUMNS, INSTRUMENT):
        wanted = options.id_column if name == INSTRUMENT else options.columns.get(name)
        if wanted is not None:
            exact = _plain(wanted)
            place = titles.index(exact) if exact in titles else _find(path, titles, exact, name)
            if place is None:
                text = f"{path} has no column {wanted!r} for {name}; it has {_listed(titles)}"
                raise CandleFileError(text, field=name)
            places[name] = place
        elif name == TIMES:
            places |= _find_times(path, titles)
        elif name != INSTRUMENT and (found := _find_first(path, titles, TITLES.get(name, (name,)), name)):
            places[name] = found[1]
    if INSTRUMENT not in places and (found := _find_first(path, titles, SYMBOL_TITLES, INSTRUMENT)):
        places[SYMBOL] = found[1]
    if missing := [name for name in PRICE_COLUMNS if name not in places]:
        text = f"{path} has no column {' and no column '.join(missing)}; it has {_listed(titles)}"
        raise CandleFileError(f"{text}: rename the columns that hold them", field=missing[0])
    return Header(titles, places, num_rows)


def _plain(title: str) -> str:
    return title.strip().removeprefix("<").removesuffix(">")


def _without_tickers(
    path: Path, titles: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], int]:
    """The titles of a file whose second row names the ticker of each column, as yfinance writes it."""
    tickers = [cell for cell in rows[1][1:] if cell]
    if not tickers or any(map(_NUMBER.fullmatch, tickers)):
        return list(titles), 1
    if len(several := dict.fromkeys(tickers)) > 1:
        text = f"{path} has several tickers side by side, {_listed(list(several))}"
        raise CandleFileError(f"{text}: write one file for each, or all below each other, df.stack(level=1)")
    has_index_row = len(rows) > 2 and not any(rows[2][1:])
    index = _plain(rows[2][0]) if has_index_row else _plain(titles[0])
    if index.lower() not in TIME_TITLES:
        index = TIME_COLUMNS[-2]
    return [index, *titles[1:]], 3 if has_index_row else 2


def _find_times(path: Path, titles: Sequence[str]) -> dict[str, int]:
    found = _find_first(path, titles, TIME_TITLES, TIMES)
    if found is None:
        for title in UNNAMED_INDEX:
            # In CSV the index comes first; other columns without a title mean nothing.
            if title in titles and (title == UNNAMED_INDEX[0] or titles[0] == title):
                return {TIMES: titles.index(title)}
        text = f"{path} has no column with the times; it has {_listed(titles)}"
        known = f"{', '.join(TIME_COLUMNS[:-1])} or {TIME_COLUMNS[-1]}"
        raise CandleFileError(f"{text}: call the column of times {known}", field=TIMES)
    title, place = found
    time_of_day = _find(path, titles, TIME_OF_DAY, TIMES) if title == "date" else None
    return {TIMES: place} if time_of_day is None else {TIMES: place, TIME_OF_DAY: time_of_day}


def _find_first(
    path: Path, titles: Sequence[str], wanted: Sequence[str], name: str
) -> tuple[str, int] | None:
    for title in wanted:
        if (place := _find(path, titles, title, name)) is not None:
            return title, place
    return None


def _find(path: Path, titles: Sequence[str], title: str, name: str) -> int | None:
    """The first column of that title in any case."""
    spelt = list(dict.fromkeys(each for each in titles if each.lower() == title.lower()))
    if len(spelt) > 1:
        text = f"{path} has the columns {' and '.join(map(shown, spelt))}: keep one of them"
        raise CandleFileError(text, field=name)
    return titles.index(spelt[0]) if spelt else None


def _listed(titles: Sequence[str]) -> str:
    return shown(", ".join(titles))
