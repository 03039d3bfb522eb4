"""A file's column of times: the wall clock as written, and the instants that order the bars."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pandas.tseries.api import guess_datetime_format

from kronos_model.bars.timestamps import EPOCH_UNITS, FIRST_TIME, ISO_8601, iana_name, write_like
from kronos_model.errors import CandleFileError

DATE_FORMAT: Final = "date_format"
MAX_GUESSES: Final = 20

_EPOCH: Final = r"^(?P<whole>[0-9]{9,10}|[0-9]{13}|[0-9]{16}|[0-9]{19})(?:\.[0-9]+)?$"
"""A number of ``EPOCH_UNITS``."""
_UNITS_US: Final = {
    length: np.timedelta64(1, unit) / np.timedelta64(1, "us") for length, unit in EPOCH_UNITS.items()
}
_WITH_OFFSET: Final = (
    r"^(?P<local>.*:[0-9]{2}(?:[.][0-9]+)?) ?(?P<offset>Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)$"
)
_WITH_ZONE: Final = (
    r"^(?P<local>.*[0-9Z]) *\[?(?P<zone>[A-Z][A-Za-z]+/[A-Za-z0-9_+/-]+|[A-Z][A-Za-z]{2,}[0-9A-Z]*)\]?$"
)
_YEAR_OF_TWO_DIGITS: Final = re.compile(r"[0-9]{1,2}([-./])[0-9]{1,2}\1[0-9]{2}(?![0-9])")
_HALF_OF_DAY: Final = re.compile(r"(?i) ?[ap]m$")
_HAS_TIME_OF_DAY: Final = r"[0-9]:[0-9]"
_MIDNIGHT: Final = r"[T ]00:00(:00([.,]0+)?)?$"
_TIME_OF_DAY: Final = r"^([0-9]{1,2}:[0-9]{2}|[0-9]{4}$|[0-9]{6}$)"


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
        if found := next(
            filter(None, map(_YEAR_OF_TWO_DIGITS.match, texts.dropna().head(MAX_GUESSES))), None
        ):
            form = f"%d{found[1]}%m{found[1]}%y"
            text = f"dates such as {found[0]!r}, which may have the year first or last: give the date format"
            raise ClockError(f"{text}, such as {form}", field=DATE_FORMAT)
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


@dataclass(frozen=True, eq=False)
class Clock:
    """Times of T rows; NaT if a cell is no time.

    Attributes:
        wall: the wall clock as written, (T,) datetime64[us].
        instants: in UTC if the times have offsets or a zone, else the wall clock, (T,) datetime64[us].
        is_aware: whether the times have offsets or a zone; None if no cell could be read.
        written: the column of ISO 8601 texts; None if the file has times of another form.
        zone: the IANA zone that the file names for them.
    """

    wall: NDArray[np.datetime64]
    instants: NDArray[np.datetime64]
    is_aware: bool | None
    written: Any = None
    zone: str | None = None

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """These times as ISO 8601: as written, if they are."""
        if self.written is not None:
            texts: list[str] = self.written.take(rows).to_pylist()
            return texts
        wall, instants = self.wall[rows], self.instants[rows]
        if not self.is_aware:
            is_daily = np.all(wall == wall.astype("datetime64[D]"))
            return list(write_like("2024-06-18" if is_daily else "2024-06-18T09:35:00", wall, None))
        offsets_s = (wall - instants).astype("timedelta64[s]").astype(np.int64)
        return list(write_like("2024-06-18T09:35:00Z", wall, offsets_s))


def read_clock(
    column: pa.ChunkedArray, date_format: str | None = None, codes: NDArray[np.int64] | None = None
) -> Clock:
    """Times from texts or numbers of any usual form, or from a column of times or dates.

    ``codes`` has the instrument of each row, if there are several.

    Raises:
        ClockError: times with and without offsets are mixed, their zone is not known, or days and months
            cannot be distinguished.
    """
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return _from_times(column)
    if pa.types.is_floating(column.type):
        column = column.cast(pa.int64(), safe=False)
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    if not pa.types.is_string(column.type):
        nowhere = np.full(len(column), np.datetime64("NaT"), dtype="datetime64[us]")
        return Clock(nowhere, nowhere, None)
    if _any_matches(column.slice(0, MAX_GUESSES), _WITH_ZONE):
        return _in_named_zone(column, date_format, codes)
    return _from_texts(column, date_format)


def _from_texts(column: pa.ChunkedArray, date_format: str | None) -> Clock:
    if date_format is not None:
        times = read_formatted(column, date_format, len(column))
        assert times is not None, "a form is given"
        return _clock(times)
    iso = _read_iso(column)
    num_empty = len(column) - int(pc.sum(pc.greater(pc.utf8_length(column), 0)).as_py() or 0)
    best, num_unread = iso, int(np.isnat(iso.wall).sum())
    for read in (read_epochs, partial(read_formatted, date_format=None, max_unread=num_unread - 1)):
        other = read(column) if num_unread > num_empty else None
        if other is not None and np.isnat(other.wall).sum() < num_unread:
            best, num_unread = other, int(np.isnat(other.wall).sum())
    return _clock(best, column if best is iso else None)


def join_date_and_time(days: pa.ChunkedArray, times_of_day: pa.ChunkedArray) -> pa.ChunkedArray:
    """Join two columns, dates and times of day, to texts such as ``2024-06-18 09:35:00``.

    A row with an empty cell in one of the two has no time. A date may end in midnight, which is ignored.
    Raises ClockError if the dates have times of day already, or the second column has none.
    """
    dates, times = _date_texts(days), times_of_day
    if pa.types.is_time(times.type):
        times = times.cast(pa.string())
    is_pair = (
        dates is not None and pa.types.is_string(times.type) and not _any_matches(dates, _HAS_TIME_OF_DAY)
    )
    if not is_pair or (len(times) and not _any_matches(times, _TIME_OF_DAY)):
        raise ClockError(
            "two columns that could be the times, date and time: rename the right one to timestamps"
        )
    times = pc.if_else(pc.equal(times, ""), pa.scalar(None, pa.string()), times)
    return pc.binary_join_element_wise(dates, times, " ")


def _date_texts(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    if pa.types.is_timestamp(column.type) and column.type.tz is None:  # as pandas writes days
        days = pc.floor_temporal(column, unit="day")
        column = column.cast(pa.date32()) if pc.all(pc.equal(days, column)).as_py() is not False else column
    if pa.types.is_date(column.type):
        return column.cast(pa.date32()).cast(pa.string())
    if pa.types.is_integer(column.type):  # 20240618
        return column.cast(pa.string())
    if not pa.types.is_string(column.type):
        return None
    return pc.replace_substring_regex(column, _MIDNIGHT, "")


def _any_matches(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _from_times(column: pa.ChunkedArray) -> Clock:
    zone = column.type.tz if pa.types.is_timestamp(column.type) else None
    instants = _microseconds(column if zone is None else column.cast(pa.timestamp(column.type.unit)))
    if zone is None:
        return Clock(instants, instants, _awareness(instants, False))
    try:
        times = pd.DatetimeIndex(instants).tz_localize("UTC").tz_convert(zone)
    except (LookupError, ValueError, OSError):  # OSError: the name is a folder of the zone database
        raise ClockError(f"times in {zone[:60]!r}, which is no IANA time zone") from None
    wall = _microseconds(times.tz_localize(None))
    return Clock(wall, instants, _awareness(instants, True), zone=iana_name(zone))


def _in_named_zone(
    column: pa.ChunkedArray, date_format: str | None, codes: NDArray[np.int64] | None
) -> Clock:
    """Times that each end in a zone's name, such as ``20240618 09:35:00 US/Eastern`` or ``… MET``."""
    parts = pc.extract_regex(column, _WITH_ZONE)
    names = pc.unique(pc.struct_field(parts, "zone")).drop_null().to_pylist()
    if len(names) > 1:
        raise ClockError(f"times in {names[0]} and in {names[1]}: write one file for each zone")
    zone = None if names[0] in ("UTC", "GMT") else iana_name(names[0])
    if zone is None and "/" not in names[0]:  # another word, such as a month
        return _from_texts(column, date_format)
    if zone is None:
        raise ClockError(f"times in {names[0][:60]!r}, which is no IANA time zone")
    texts = pc.if_else(pc.or_(pc.is_valid(parts), pc.equal(column, "")), pc.struct_field(parts, "local"), "x")
    clock = _from_texts(pc.replace_substring_regex(pc.fill_null(texts, ""), " +", " "), date_format)
    if clock.is_aware is not False:
        return replace(clock, zone=zone)
    is_again = _is_again(clock.wall, np.zeros(len(clock.wall), np.int64) if codes is None else codes)
    local = pd.DatetimeIndex(clock.wall).tz_localize(zone, ambiguous=~is_again, nonexistent="NaT")
    wall, instants = (_microseconds(each) for each in (local.tz_localize(None), local.tz_convert(None)))
    return Clock(wall, instants, True, zone=zone)


def _is_again(wall: NDArray[np.datetime64], codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each instrument's clock has shown this time or a later one before, as when clocks go back."""
    is_again = np.zeros(len(wall), bool)
    order = np.argsort(codes, kind="stable")
    order = order[~np.isnat(wall[order])]
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        if len(rows) > 1:
            rows = rows[:: -1 if wall[rows[0]] > wall[rows[-1]] else 1]  # the newest may stand first
            is_again[rows[1:]] = wall[rows[1:]] <= np.maximum.accumulate(wall[rows])[:-1]
    return is_again


def _read_iso(column: pa.ChunkedArray) -> WrittenTimes:
    parts = pc.extract_regex(column, f"^{ISO_8601}$")
    fraction = pc.utf8_slice_codeunits(pc.struct_field(parts, "fraction"), 0, 6)
    fraction = pc.if_else(pc.equal(fraction, ""), fraction, pc.binary_join_element_wise("", fraction, "."))
    texts = pc.binary_join_element_wise(
        *(pc.struct_field(parts, part) for part in ("date", "minute", "second")), fraction, ""
    )
    try:
        wall = _microseconds(texts.cast(pa.timestamp("us")))
    except pa.ArrowInvalid:  # digits that are no date, such as 2024-02-30; pandas says which
        wall = _microseconds(pd.to_datetime(texts.to_pandas(), format="ISO8601", errors="coerce"))
    return WrittenTimes(wall, pc.struct_field(parts, "offset"))


def _clock(times: WrittenTimes, written: Any = None) -> Clock:
    """Raises ClockError if only some of the times have an offset."""
    offsets_s, has_offset = _read_offsets(times.offsets)
    is_none = np.isnat(offsets_s) | (times.wall < FIRST_TIME)
    wall = np.where(is_none, np.datetime64("NaT", "us"), times.wall)
    rows = np.flatnonzero(~np.isnat(wall))  # of the times
    is_aware = has_offset[rows]
    if (differs := is_aware != is_aware[:1]).any():
        text = "times with an offset and times without one: write all of them alike"
        raise ClockError(text, int(rows[np.argmax(differs)]))
    return Clock(
        wall,
        np.asarray(wall - offsets_s, dtype="datetime64[us]"),
        _awareness(wall, bool(is_aware.any())),
        written,
    )


def _read_offsets(column: pa.ChunkedArray) -> tuple[NDArray[np.timedelta64], NDArray[np.bool_]]:
    """Offsets east of UTC, (T,) timedelta64[s], NaT if impossible; and whether a row has one."""
    encoded = pc.fill_null(column, "").combine_chunks().dictionary_encode()
    written: list[str] = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    seconds = [_offset_s(text) if text else 0 for text in written]
    offsets = np.array(seconds, dtype="timedelta64[s]")
    return offsets[codes], np.array([bool(text) for text in written], dtype=bool)[codes]


def _offset_s(text: str) -> int | np.timedelta64:
    try:
        offset = datetime.fromisoformat(f"2000-01-01T00:00:00{text}").utcoffset()
    except ValueError:  # a day or longer
        offset = None
    return np.timedelta64("NaT") if offset is None else int(offset.total_seconds())


def _awareness(times: NDArray[np.datetime64], is_aware: bool) -> bool | None:
    return None if np.isnat(times).all() else is_aware


def _microseconds(column: Any) -> NDArray[np.datetime64]:
    return np.asarray(column.to_numpy().astype("datetime64[us]"))
