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

from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS, TIME_COLUMNS
from kronos_model.bars.files.options import TIME_OF_DAY, TIMES, VALUE, ReadOptions
from kronos_model.bars.files.vendors import (
    INSTRUMENT,
    PLAIN,
    SIDE_BY_SIDE,
    SYMBOL,
    TIME_TITLES,
    VALUES,
    VENDORS,
    Vendor,
    recognise,
)
from kronos_model.errors import CandleFileError
from kronos_model.text import printable

MAX_SHOWN_CHARS: Final = 300
SYMBOL_TITLES: Final = ("unique_id", "item_id", "symbol", "ticker", "instrument", "code")
HEADER_ROWS: Final = 3
"""The most rows before the first bar."""
UNNAMED_INDEX: Final = ("__index_level_0__", "", "Unnamed: 0")
"""Titles of pandas' unnamed index: in Parquet, in CSV, and in CSV that was read and written again."""
YFINANCE: Final = (
    *PRICE_COLUMNS,
    "adj close",
    "volume",
    "dividends",
    "stock splits",
    "capital gains",
    "repaired?",
)
"""The titles in one row of a file of yfinance, whose other row has the tickers."""
_NUMBER: Final = re.compile(r"[+-]?[0-9][0-9.,]*(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Header:
    """The meaning of a file's columns.

    Attributes:
        titles: of all columns, without spaces and angle brackets around them.
        places: the positions of the used columns, by our names; of all columns, if their order is to be
            proved; by ticker and name, if ``tickers`` stand side by side.
        num_rows: rows before the first bar.
        vendor: whose form it is; None if the titles are numbers, and the values must prove the order.
        tickers: the instruments that stand side by side.
        names_instruments: whether the column ``SYMBOL`` may name several instruments.
    """

    titles: Sequence[str]
    places: Mapping[str, int]
    num_rows: int = 1
    vendor: Vendor | None = PLAIN
    tickers: Sequence[str] = ()
    names_instruments: bool = False

    @property
    def is_value(self) -> bool:
        """Whether each bar has one value."""
        return self.vendor is not None and self.vendor.is_value

    @property
    def used_titles(self) -> dict[str, str]:
        return {name: self.titles[place] for name, place in self.places.items()}


ReadHeader = Callable[..., Header]
"""Reads the header in the first rows of a file; with its first cells, proves the order of columns instead."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The used columns of a file, in the order of its rows.

    Attributes:
        header: the meaning of the file's columns.
        columns: pyarrow arrays of T cells, by our names. Texts have no spaces around them.
        unit: the unit of row numbers in errors: lines of a CSV file from 1, rows of a Parquet file from 0.
        count: returns the line or row of each, (T,).
        overlong: the number of cells of each row with more cells than the header. Its own cells are empty.
        separator: what stands between the cells of a CSV file.
        notes: warnings about the file as a whole.
    """

    header: Header
    columns: Mapping[str, Any]
    unit: Literal["line", "row"]
    count: Callable[[], NDArray[np.int64]]
    overlong: Mapping[int, int] = field(default_factory=dict)
    separator: str | None = None
    notes: Sequence[str] = ()

    @property
    def titles(self) -> dict[str, str]:
        """The file's title of each column, by our names."""
        return self.header.used_titles

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The line or row of each row, counted only if needed."""
        return self.count()


def shown(text: str) -> str:
    """The start of a text from a file, safe to print on a terminal."""
    return printable(text[:MAX_SHOWN_CHARS])


def read_header(path: Path, rows: Sequence[Sequence[str]], options: ReadOptions) -> Header:
    """The header in a file's first rows.

    The column of times is the vendor's, else the first of ``TIME_TITLES`` that the file has, else pandas'
    unnamed index. A column ``time`` belongs to ``date``. Columns without titles are called 1, 2, 3 and so on.

    Raises:
        CandleFileError: a column is missing, several differ in case only, or the titles fit two vendors.
            ``field`` is our name for it.
    """
    titles, num_rows = [_plain(title) for title in rows[0]], 1
    tickers: Sequence[str] = ()
    if are_numbers(titles):
        titles, num_rows = [str(place) for place in range(1, len(titles) + 1)], 0
        if not options.columns and all(len(vendor.order) != len(titles) for vendor in VENDORS):
            raise unproved(path)
        if not options.columns:
            return Header(titles, {title: place for place, title in enumerate(titles)}, 0, None)
    elif len(rows) > 1 and len(rows[1]) == len(titles) > 1:
        titles, tickers, num_rows = _without_tickers(titles, rows)
    if len(several := list(dict.fromkeys(tickers))) < 2:
        return _header(path, titles, num_rows, options)
    places, places_of = {TIMES: 0}, {ticker: [0] for ticker in several}
    for place, ticker in enumerate(tickers, 1):
        places_of[ticker].append(place)
    for ticker, own in places_of.items():
        found = _header(path, [titles[place] for place in own], num_rows, options).places
        places |= {f"{ticker} {name}": own[place] for name, place in found.items() if name in COLUMNS}
    return Header(titles, places, num_rows, SIDE_BY_SIDE, tuple(several))


def are_numbers(titles: Sequence[str]) -> bool:
    """Whether these are no titles, but the cells of a bar."""
    return sum(map(bool, map(_NUMBER.fullmatch, titles))) >= len(PRICE_COLUMNS)


def _header(path: Path, titles: Sequence[str], num_rows: int, options: ReadOptions) -> Header:
    given = dict(options.columns) | ({} if options.id_column is None else {INSTRUMENT: options.id_column})
    try:
        vendor, found = recognise(titles, given)
    except CandleFileError as error:
        raise CandleFileError(f"{path} has {error.message}", field=error.field) from None
    places: dict[str, int] = {}
    for name, title in (found | given).items():
        exact = _plain(title)
        is_exact = name in given and exact in titles
        place = titles.index(exact) if is_exact else _find(path, titles, exact, name)
        if place is None:
            text = f"{path} has no column {title!r} for {name}; it has {_listed(titles)}: use one of these"
            raise CandleFileError(text, field=name)
        places[name] = place
    if TIMES not in places:
        places |= _find_times(path, titles)
    if VALUE in places:
        vendor = vendor if vendor.is_value else VALUES
        places |= dict.fromkeys(PRICE_COLUMNS, places[VALUE])
    names_instruments = SYMBOL in places and INSTRUMENT not in places
    if not {SYMBOL, INSTRUMENT} & {*places} and (
        symbol := _find_first(path, titles, SYMBOL_TITLES, INSTRUMENT)
    ):
        places[SYMBOL] = symbol[1]
    if missing := [name for name in PRICE_COLUMNS if name not in places]:
        text = f"{path} has no column {' and no column '.join(missing)}; it has {_listed(titles)}"
        if not {"open", "high", "low"} - {*missing}:
            text += (
                ": rename the columns that hold them; if each bar has one value, keep only that column and "
            )
            text += "call it value"
            raise CandleFileError(text, field=VALUE)
        raise CandleFileError(f"{text}: rename the columns that hold them", field=missing[0])
    order = (TIMES, TIME_OF_DAY, *COLUMNS, INSTRUMENT if INSTRUMENT in places else SYMBOL)
    used = {name: places[name] for name in order if name in places}
    return Header(titles, used, num_rows, vendor, names_instruments=names_instruments)


def unproved(path: Path) -> CandleFileError:
    """The error about a file without titles, whose values do not prove which column is which."""
    text = f"{path} has no header, line 1 holds numbers, and the values do not prove the order of the "
    text += "columns: add a line with the titles, or name each column by its number, timestamps=1, open=2"
    return CandleFileError(text, field="columns")


def misfit(path: Path, vendor: Vendor, line: int, cells: Sequence[str]) -> CandleFileError:
    """The same, about the first row in which the file differs from what its likeliest vendor writes."""
    order = ", ".join(f"{name}={place}" for place, name in enumerate(vendor.order, 1) if name)
    text = f"{path} has no header, and the values do not prove the order of the columns; line {line}, "
    text += (
        f"'{shown(', '.join(cells))}', does not fit the order of {vendor.name}: correct that line, or name "
    )
    return CandleFileError(
        f"{text}each column by its number: {order}", field="columns", details={"line": line}
    )


def _plain(title: str) -> str:
    return title.strip().removeprefix("<").removesuffix(">")


def _without_tickers(
    titles: list[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], Sequence[str], int]:
    """The titles of a file of yfinance, the ticker of each column but the first, and the number of rows."""
    prices, tickers = titles[1:], [cell.strip() for cell in rows[1][1:]]
    if _are_prices(tickers):  # grouped by ticker
        prices, tickers = tickers, prices
    is_named = any(_plain(row[0]).lower() in ("ticker", "") for row in rows[:2])
    if not (is_named and all(each.lower() in YFINANCE for each in prices) and all(tickers)):
        return titles, (), 1
    if any(map(_NUMBER.fullmatch, tickers)) or _are_prices(tickers):
        return titles, (), 1
    has_index_row = len(rows) > 2 and not any(rows[2][1:])
    index = _plain(rows[2][0]) if has_index_row else titles[0]
    if index.lower() not in TIME_TITLES:
        index = TIME_COLUMNS[-2]
    return [index, *prices], tickers, 3 if has_index_row else 2


def _are_prices(cells: Sequence[str]) -> bool:
    """Whether they are titles of yfinance, and not tickers such as LOW and OPEN."""
    names = {each.lower() for each in cells}
    return {*PRICE_COLUMNS} <= names <= {*YFINANCE}


def _find_times(path: Path, titles: Sequence[str]) -> dict[str, int]:
    found = _find_first(path, titles, TIME_TITLES, TIMES)
    if found is None:
        for title in UNNAMED_INDEX:
            # In CSV the index comes first; other columns without a title mean nothing.
            if title in titles and (title == UNNAMED_INDEX[0] or titles[0] == title):
                return {TIMES: titles.index(title)}
        if titles[0].lower().startswith(("!doctype html", "html>", "html ")):
            raise CandleFileError(f"{path} is a web page, not candles: get the file again")
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
