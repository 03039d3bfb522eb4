"""From an app's candles (DataFrames, columns, records) to a series of the wire. No pandas needed.

Whatever an app's own objects raise when they are read becomes one coded error.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta, timezone, tzinfo
from itertools import zip_longest
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_client.contract.columns import encode_column
from kronos_client.contract.dataframes import plain_candles, refuse_empty
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS, TIME_COLUMNS
from kronos_model.bars.files.options import VALUE
from kronos_model.bars.files.vendors import VALUES
from kronos_model.bars.missing import Missing
from kronos_model.bars.timestamps import iana_name

MAX_REASON_CHARS: Final = 200


@contextmanager
def readable(what: str, field: str | None = None) -> Iterator[None]:
    """Raise JobError BAD_TYPE for any exception but MemoryError."""
    try:
        yield
    except (JobError, MemoryError):
        raise
    except Exception as error:  # an app's object may raise anything when it is read
        raise JobError(ErrorCode.BAD_TYPE, f"{what} cannot be read ({_reason(error)})", field) from error


@contextmanager
def within(place: str) -> Iterator[None]:
    """Put ``place``, such as ``series.0``, before the field of a JobError."""
    try:
        yield
    except JobError as error:
        field = place if error.field is None else f"{place}.{error.field}"
        raise JobError(error.code, error.message, field, error.details) from error.__cause__


def _reason(error: Exception) -> str:
    text = ""
    with suppress(Exception):  # the app's own __str__ may raise too
        text = str(error)[:MAX_REASON_CHARS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


NO_NUMBERS: Final = "bcmMV"
"""NumPy dtype kinds that it would silently convert to numbers, such as times and booleans."""
NO_NUMBER: Final = (bool, complex, date, np.bool_, np.complexfloating, np.datetime64, np.timedelta64)
"""The same types in an array of objects; pandas' times are a ``date`` too."""

_DECIMAL_COMMA: Final = re.compile(r"[+-]?[0-9.]*,[0-9]+")
MAX_FLOAT: Final = sys.float_info.max

CandleSource = Any
"""A pandas or polars DataFrame, or a mapping, with the price columns, volume, amount and timestamps.

Or a list of records, one for each bar: mappings with a number for each column, as from a JSON or CSV reader.
Or a pandas Series, or a column ``value``, ``y`` or ``target``, with one value a bar. Frames of the vendors in
``docs/use/files.md`` have their titles.
"""


@readable("the candles")
def series_payload(
    candles: CandleSource,
    series_id: str,
    *,
    timestamps: Iterable[Any] | None = None,
    future_timestamps: Iterable[Any] | None = None,
    calendar: str | None = None,
    timezone: str | None = None,
    max_bars: int | None = None,
) -> dict[str, Any]:
    """One series as the contract has it, its columns as base64 of float32; at most the last ``max_bars``.

    The case of column names does not matter, nor does a further level of them, such as yfinance's tickers.
    Timestamps come from the argument, else from a column named in ``TIME_COLUMNS``, else from a DataFrame's
    DatetimeIndex. Strings stay as they are. Times with an IANA zone give it to the series.

    Raises:
        JobError: Timestamps or columns cannot be read; nothing else is raised. The contract checks values.
    """
    refuse_empty(candles)
    if is_records(candles):
        candles = _columns_of(candles)
    given: Any = getattr(candles, "columns", candles)
    if isinstance(given, str) or not isinstance(given, Iterable) or not hasattr(candles, "__getitem__"):
        expected = "a DataFrame, a mapping of columns or a list of records"
        raise JobError(ErrorCode.BAD_TYPE, f"candles must be {expected}, not {type(candles).__name__}")
    names: dict[str, Any] = {}
    for name, label in _named(given):
        if name in names and name in COLUMNS:
            message = f"the columns {names[name]} and {label} are both {name}: keep one of them"
            raise JobError(ErrorCode.BAD_VALUE, message, name)
        names[name] = label
    with np.errstate(over="ignore"):  # too large a value becomes infinite, which the contract refuses
        columns: dict[str, Any] = {
            name: _numbers(candles[names[name]], name) for name in COLUMNS if name in names
        }
        if not columns.keys() & {*PRICE_COLUMNS} and (found := VALUES.found_in([*names])):  # one value a bar
            columns |= dict.fromkeys(PRICE_COLUMNS, _numbers(candles[names[found[VALUE]]], found[VALUE]))
    texts, zone = _times(_find_timestamps(candles, names) if timestamps is None else timestamps)
    num_bars = max(map(len, columns.values()), default=len(texts))
    for name, values in (*columns.items(), ("timestamps", texts)):  # before a series is cut to its end
        if (length := len(values)) != num_bars:
            message = f"{name} has {length} entries for {num_bars} bars: give one a bar"
            raise JobError(ErrorCode.LENGTH_MISMATCH, message, name, {"row": min(length, num_bars)})
    newest = slice(-max_bars if max_bars else None, None)
    payload: dict[str, Any] = {"id": series_id, "timestamps": texts[newest]}
    for name, values in columns.items():
        payload[name] = encode_column(values[newest])
    if future_timestamps is not None:
        payload["future_timestamps"] = _times(future_timestamps)[0]
    for name, value in (("calendar", calendar), ("timezone", zone if timezone is None else timezone)):
        if value is not None:
            payload[name] = value
    return payload


def _named(labels: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Each column's name in lower case, and its label.

    Of labels with several levels it is the one that names most of our columns: tickers may be LOW and OPEN.
    """
    labels = list(labels)
    parts = [label if isinstance(label, tuple) else (label,) for label in labels]
    levels = [[str(part).lower() for part in level] for level in zip_longest(*parts, fillvalue="")]
    ours = {*COLUMNS, *TIME_COLUMNS}
    names = max(levels, key=lambda level: len(ours.intersection(level)), default=[])
    for name, own, label in zip(names, parts, labels, strict=True):
        yield name or str(own[0]).lower(), label


def is_records(candles: object) -> bool:
    """Whether it is a list of bars; any other list holds several series."""
    if not isinstance(candles, list | tuple) or not candles or not isinstance(candles[0], Mapping):
        return False
    prices = [value for name, value in candles[0].items() if str(name).lower() in COLUMNS]
    return bool(prices) and all(np.ndim(value) == 0 for value in prices)


def named_sources(candles: Any) -> tuple[list[str], list[CandleSource]]:
    """The names and candles of one source, a list of them, or a mapping; numbers stand for missing names."""
    if isinstance(candles, list | tuple) and not is_records(candles):
        return [str(index) for index in range(len(candles))], list(candles)
    is_mapping = isinstance(candles, Mapping) and len(candles) > 0
    # Else it is one source's columns by name, which are lists or arrays.
    if is_mapping and all(
        isinstance(source, Mapping) or hasattr(source, "columns") for source in candles.values()
    ):
        return [str(name) for name in candles], list(candles.values())
    return ["0"], [candles]


def _columns_of(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Raises JobError MISSING_FIELD if a record lacks a field of the first one."""
    columns: dict[str, list[Any]] = {name: [] for name in records[0]}
    for row, record in enumerate(records):
        for name, values in columns.items():
            if not isinstance(record, Mapping) or name not in record:
                message = f"the record in row {row} has no {name!r}, unlike the first one"
                raise JobError(ErrorCode.MISSING_FIELD, message, str(name), {"row": row})
            values.append(record[name])
    return columns


def _find_timestamps(candles: CandleSource, names: Mapping[str, Any]) -> Any:
    for name in (*TIME_COLUMNS, "ds"):
        if name in names:
            return candles[names[name]]
    index: Any = getattr(candles, "index", None)
    if getattr(getattr(index, "dtype", None), "kind", None) == "M":
        return index
    sources = f"a column named one of {', '.join(TIME_COLUMNS)}, a DatetimeIndex, or pass timestamps="
    raise JobError(ErrorCode.MISSING_FIELD, f"no timestamps: give {sources}", "timestamps")


def _numbers(values: Any, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    given = None
    try:
        given = np.asarray(values)
        if given.ndim != 1:
            message = f"column {name!r} must be a list or an array with a number for each bar"
            raise JobError(ErrorCode.BAD_TYPE, message, name)
        is_odd = given.dtype.kind == "O" and any(isinstance(value, NO_NUMBER) for value in given)
        if is_odd or given.dtype.kind in NO_NUMBERS:
            raise TypeError
        # pandas' own missing values are objects, which only pandas converts.
        return np.asarray(values if given.dtype.kind == "O" else given, dtype=np.float32)
    except OverflowError:  # only an integer can overflow here
        rows = enumerate(() if given is None else given)
        row = next((row for row, value in rows if isinstance(value, int) and abs(value) > MAX_FLOAT), None)
        message, details = f"column {name!r} holds a number too large for a float", {"row": row}
        raise JobError(ErrorCode.VALUE_TOO_LARGE, message, name, {} if row is None else details) from None
    except (TypeError, ValueError):
        row = None if given is None else _first_text(given)
        if given is None or row is None:
            message = f"column {name!r} holds something that is not a number"
            raise JobError(ErrorCode.BAD_TYPE, message, name) from None
        message = f"column {name!r}, row {row}: {given[row][:40]!r} is not a number"
        if _DECIMAL_COMMA.fullmatch(given[row]):
            message += ': if its comma separates decimals, give decimal="," to pd.read_csv'
        raise JobError(ErrorCode.BAD_TYPE, message, name, {"row": row}) from None


def _first_text(values: Iterable[Any]) -> int | None:
    """The row of the first text that is no number."""
    for row, value in enumerate(values):
        if isinstance(value, str):
            try:
                float(value)
            except ValueError:
                return row
    return None


def _times(timestamps: Any) -> tuple[list[str], str | None]:
    """The times as texts, and the name of their one zone, if it has one."""
    is_one = isinstance(timestamps, str) or getattr(timestamps, "ndim", 1) != 1
    if is_one or not isinstance(timestamps, Iterable):
        message = f"timestamps must be a list, not {type(timestamps).__name__}"
        raise JobError(ErrorCode.BAD_TYPE, message, "timestamps")
    dtype: Any = getattr(timestamps, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind == "M":
        return _numpy_texts(np.asarray(timestamps)), None
    if not isinstance(dtype, np.dtype) and hasattr(dtype, "tz"):  # pandas' times with a zone
        times: Any = getattr(timestamps, "dt", timestamps)
        wall, instants = (np.asarray(naive(None)) for naive in (times.tz_localize, times.tz_convert))
        if not np.isnat(wall).any():
            offsets = (wall - instants).astype("timedelta64[us]").tolist()
            ends = {offset: _offset(offset) for offset in set(offsets)}
            texts = [text + ends[offset] for text, offset in zip(_numpy_texts(wall), offsets, strict=True)]
            return texts, _name_of_zone(dtype.tz)
    values = list(timestamps)
    zones = {id(zone): zone for zone in (getattr(value, "tzinfo", None) for value in values)}
    names = {_name_of_zone(zone) for zone in zones.values()}
    return [_text(value) for value in values], names.pop() if len(names) == 1 else None


def _name_of_zone(zone: tzinfo | None) -> str | None:
    """The IANA name of a zone of zoneinfo, pytz or dateutil; None for offsets and names unknown here."""
    given = [getattr(zone, attribute, None) for attribute in ("key", "zone", "_filename")]
    given += ["UTC"] if str(zone) in ("UTC", "tzutc()") else []
    name = next((name for name in given if isinstance(name, str)), "")
    return iana_name(name.rpartition("zoneinfo/")[2])


def _offset(offset: timedelta) -> str:
    """Such as ``+08:00``."""
    return datetime(2000, 1, 1, tzinfo=timezone(offset)).isoformat()[len("2000-01-01T00:00:00") :]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, datetime | date):  # pandas' Timestamp is a datetime
        return value.isoformat()
    if isinstance(value, np.datetime64):
        return _numpy_texts(np.array([value]))[0]
    message = f"timestamps must be ISO 8601 strings, datetimes or numpy datetimes, not {type(value).__name__}"
    raise JobError(ErrorCode.BAD_TIMESTAMP, message, "timestamps")


def _numpy_texts(times: NDArray[np.datetime64]) -> list[str]:
    """To the second; to the microsecond if any has a fraction."""
    seconds = times.astype("datetime64[s]")
    is_whole = bool(((seconds == times) | np.isnat(times)).all())
    # Faster than ``np.datetime_as_string``. No text has 32 characters, so zero bytes separate them.
    padded = (seconds if is_whole else times.astype("datetime64[us]")).astype("S32")
    return padded.tobytes().decode("ascii").replace("\0", " ").split()


def job_series(
    candles: CandleSource,
    series_ids: Sequence[str] | None = None,
    timestamps: Any = None,
    future_timestamps: Any = None,
    calendar: str | None = None,
    timezone: str | None = None,
    max_bars: int | None = None,
    missing: Missing | None = None,
) -> list[dict[str, Any]]:
    """The series of a job, from one source, a list of sources, or sources by their ids.

    With several sources, ids and timestamps are lists with one entry for each source.

    Raises:
        JobError: Names the field at fault.
    """
    with readable("the candles"):
        candles = plain_candles(candles, missing or "error", has_times=timestamps is not None)
        names, sources = named_sources(candles)
    several = len(sources) != 1 or sources[0] is not candles

    def one_each(values: Any, field: str) -> list[Any]:
        with readable(field, field):
            each = [values] if isinstance(values, str) else list(values)
        if len(each) != len(sources):
            message = f"{field} has {len(each)} entries for {len(sources)} series; give a list of as many"
            raise JobError(ErrorCode.LENGTH_MISMATCH, message, field)
        return each

    ids = names if series_ids is None else one_each(series_ids, "series_ids")
    past, future = (
        one_each(values, field) if several and values is not None else [values] * len(sources)
        for field, values in (("timestamps", timestamps), ("future_timestamps", future_timestamps))
    )
    payloads, common = [], {"calendar": calendar, "timezone": timezone, "max_bars": max_bars}
    for index, (source, name) in enumerate(zip(sources, ids, strict=True)):
        times = {"timestamps": past[index], "future_timestamps": future[index]}
        with within(f"series.{index}"):
            payloads.append(series_payload(source, name, **times, **common))  # type: ignore[arg-type]
    return payloads
