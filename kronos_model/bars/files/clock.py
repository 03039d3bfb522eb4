"""A file's column of times: the wall clock as written, and the instants that order the bars."""

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kronos_model.bars.timestamps import ISO_8601

_HAS_TIME_OF_DAY: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]"
_MIDNIGHT: Final = r"[T ]00:00(:00([.,]0+)?)?$"
_TIME_OF_DAY: Final = r"^[0-9]{2}:[0-9]{2}"
_FIRST_TIME: Final = np.datetime64("0001-01-01", "s")
"""Python's earliest date."""


class ClockError(ValueError):
    """A column of times that cannot be read as a whole; ``row`` is the first at fault, if it is one row."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


@dataclass(frozen=True, eq=False)
class Clock:
    """Times of T rows, to the second; NaT if a cell is no time.

    Attributes:
        wall: the wall clock as written, (T,) datetime64[s].
        instants: in UTC if the times have offsets or a zone, else the wall clock, (T,) datetime64[s].
        is_aware: whether the times have offsets or a zone; None if no cell could be read.
    """

    wall: NDArray[np.datetime64]
    instants: NDArray[np.datetime64]
    is_aware: bool | None


def read_clock(column: pa.ChunkedArray) -> Clock:
    """Times from ISO 8601 texts, or from a column of times or dates.

    Any other column holds no times: integers, for example, could be seconds or milliseconds.

    Raises:
        ClockError: times with and without offsets are mixed, or their zone is not known.
    """
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return _from_times(column)
    if pa.types.is_string(column.type):
        return _from_texts(column)
    nowhere = np.full(len(column), np.datetime64("NaT"), dtype="datetime64[s]")
    return Clock(nowhere, nowhere, None)


def time_texts(column: pa.ChunkedArray) -> list[str | None]:
    """The times of a column that ``read_clock`` reads, as ISO 8601. Texts stay as written."""
    cells = column.to_pylist()
    return [cell.isoformat() if isinstance(cell, date) else cell for cell in cells]


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
    if not pa.types.is_string(column.type):
        return None
    return pc.replace_substring_regex(column, _MIDNIGHT, "")


def _any_matches(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _from_times(column: pa.ChunkedArray) -> Clock:
    zone = column.type.tz if pa.types.is_timestamp(column.type) else None
    instants = _seconds(column if zone is None else column.cast(pa.timestamp(column.type.unit)))
    if zone is None:
        return Clock(instants, instants, _awareness(instants, False))
    try:
        times = pd.DatetimeIndex(instants).tz_localize("UTC").tz_convert(zone)
    except (LookupError, ValueError, OSError):  # OSError: the name is a folder of the zone database
        raise ClockError(f"times in {zone[:60]!r}, which is no IANA time zone") from None
    wall = times.tz_localize(None).to_numpy().astype("datetime64[s]")
    return Clock(wall, instants, _awareness(instants, True))


def _from_texts(column: pa.ChunkedArray) -> Clock:
    parts = pc.extract_regex(column, f"^{ISO_8601}$")  # fractions of a second are dropped
    texts = pc.binary_join_element_wise(
        *(pc.struct_field(parts, part) for part in ("date", "minute", "second")), ""
    )
    try:
        wall = _seconds(texts.cast(pa.timestamp("s")))
    except pa.ArrowInvalid:  # digits that are no date, such as 2024-02-30; pandas says which
        times = pd.to_datetime(texts.to_pandas(), format="ISO8601", errors="coerce")
        wall = times.to_numpy().astype("datetime64[s]")
    offsets_s, has_offset = _read_offsets(pc.struct_field(parts, "offset"))
    wall = np.where((wall < _FIRST_TIME) | np.isnat(offsets_s), np.datetime64("NaT", "s"), wall)
    rows = np.flatnonzero(~np.isnat(wall))  # of the times
    is_aware = has_offset[rows]
    if (differs := is_aware != is_aware[:1]).any():
        text = "times with an offset and times without one: write all of them alike"
        raise ClockError(text, int(rows[np.argmax(differs)]))
    return Clock(wall, wall - offsets_s, _awareness(wall, bool(is_aware.any())))


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


def _seconds(column: Any) -> NDArray[np.datetime64]:
    return np.asarray(column.to_numpy().astype("datetime64[s]"))
