"""Times that are not written in ISO 8601: seconds since 1970, and dates as people and programs write them."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pandas.tseries.api import guess_datetime_format

from kronos_model.errors import CandleFileError

DATE_FORMAT: Final = "date_format"
MAX_GUESSES: Final = 20

_EPOCH: Final = r"^(?P<whole>[0-9]{9,10}|[0-9]{13}|[0-9]{16}|[0-9]{19})(?:\.[0-9]+)?$"
"""Seconds, milliseconds, microseconds or nanoseconds since 1970: any time from 1973 to 2286."""
_UNITS_US: Final = {9: 1e6, 10: 1e6, 13: 1e3, 16: 1, 19: 1e-3}
_WITH_OFFSET: Final = (
    r"^(?P<local>.*:[0-9]{2}(?:[.][0-9]+)?) ?(?P<offset>Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)$"
)
_HALF_OF_DAY: Final = re.compile(r"(?i) ?[ap]m$")


class ClockError(CandleFileError):
    """A column of times that cannot be read as a whole; ``row`` is the first at fault, if it is one row."""

    def __init__(self, message: str, row: int | None = None, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.row = row


@dataclass(frozen=True, eq=False)
class WrittenTimes:
    """Times of T rows, NaT if a cell is none.

    Attributes:
        wall: as written, (T,) datetime64[us].
        offsets: each row's offset as text, or null; a pyarrow column.
    """

    wall: NDArray[np.datetime64]
    offsets: Any


def read_epochs(column: pa.ChunkedArray) -> WrittenTimes:
    """Seconds, milliseconds, microseconds or nanoseconds since 1970 in UTC, by the number of digits."""
    whole = pc.struct_field(pc.extract_regex(column, _EPOCH), "whole")
    lengths = pc.fill_null(pc.utf8_length(whole), 0).to_numpy()
    numbers = pc.fill_null(whole.cast(pa.int64()), 0).to_numpy()
    units_us = np.array([_UNITS_US.get(length, 0) for length in range(20)])[lengths]
    fine, coarse = numbers // 1000, numbers * units_us.astype(np.int64)
    wall = np.where(lengths == 19, fine, coarse).astype("datetime64[us]")
    wall[lengths == 0] = np.datetime64("NaT")
    return WrittenTimes(wall, pc.if_else(pc.is_valid(whole), "Z", pa.scalar(None, pa.string())))


def read_formatted(column: pa.ChunkedArray, date_format: str | None, max_unread: int) -> WrittenTimes | None:
    """Times in one form, which is given or found from the cells; None if it leaves more cells unread.

    Raises:
        ClockError: Days and months cannot be distinguished, or the given form is none.
    """
    parts = pc.extract_regex(column, _WITH_OFFSET)
    has_offset = pc.is_valid(parts)
    texts = pc.if_else(has_offset, pc.struct_field(parts, "local"), column).to_pandas()
    offsets = pc.struct_field(parts, "offset")
    offsets = pc.replace_substring_regex(offsets, "UTC|GMT", "Z")
    forms = _guesses(texts) if date_format is None else [re.sub(" ?%[zZ]$", "", date_format)]
    readings = [_read(texts, form) for form in forms]
    if not readings:
        return None
    counts = [int(np.isnat(reading).sum()) for reading in readings]  # of cells that do not fit
    best = int(np.argmin(counts))
    if counts[best] > max_unread:
        return None
    is_tie = len(readings) > 1 and counts[0] == counts[1]
    if is_tie and not np.array_equal(readings[0], readings[1], equal_nan=True):
        example = texts[np.flatnonzero(readings[0] != readings[1])[0]]
        text = f"dates such as {example[:40]!r}, which may have the day or the month first"
        raise ClockError(f"{text}: give the date format, {forms[1]} or {forms[0]}", field=DATE_FORMAT)
    return WrittenTimes(readings[best], offsets)


def _read(texts: "pd.Series[str]", form: str) -> NDArray[np.datetime64]:
    try:
        times = pd.to_datetime(texts, format=form, errors="coerce")
        return np.asarray(times.to_numpy().astype("datetime64[us]"))
    except (TypeError, ValueError) as error:
        raise ClockError(f"no times in the date format {form!r}: {error}", field=DATE_FORMAT) from None


def _guesses(texts: "pd.Series[str]") -> list[str]:
    """The form of the first cell that has one: month first and day first if it may be either."""
    for text in texts[texts.str.len() > 0].head(MAX_GUESSES):
        if forms := list(dict.fromkeys(_forms_of(text))):
            return forms
    return []


def _forms_of(text: str) -> Iterator[str]:
    is_half = _HALF_OF_DAY.search(text)
    if is_half:
        text = text[: is_half.start()]
    # Only Germans and their neighbours put points between the parts, and the day first.
    orders = (True,) if re.match(r"[0-9]{1,2}\.", text) else (False, True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the order that was asked for does not fit
        for is_day_first in orders:
            try:
                form = guess_datetime_format(text, dayfirst=is_day_first)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # odd texts
                form = None
            if form is None or "%z" in form.lower() or (is_day_first and form.startswith("%Y")):
                continue  # a zone in an odd place, or a year that comes before the month
            if is_half:
                form = form.replace("%H", "%I") + is_half[0][: -len("pm")] + "%p"
            yield form
