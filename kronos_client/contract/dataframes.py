"""Frames as vendors' libraries make them, and series of one value a bar, as candles with our names."""

import re
import warnings
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.columns import COLUMNS, TIME_COLUMNS
from kronos_model.bars.files.header import SYMBOL_TITLES, UNNAMED_INDEX, are_numbers
from kronos_model.bars.files.options import TIME_OF_DAY, TIMES, VALUE, ReadOptions
from kronos_model.bars.files.vendors import PLAIN, TIME_TITLES, VALUES, Vendor, recognise
from kronos_model.bars.missing import Missing
from kronos_model.bars.timestamps import EPOCH_UNITS, ISO_8601, write_like
from kronos_model.errors import CandleFileError, RepeatedTime

if TYPE_CHECKING:
    from kronos_model.bars.files.lookback import Lookback

MAX_BARS: Final = 2**31
_ISO_TIME: Final = re.compile(ISO_8601)
_recognised = lru_cache(recognise)


def plain_candles(
    candles: Any, missing: Missing = "error", *, has_times: bool = False, notes: list[str] | None = None
) -> Any:
    """The candles, where frames of vendors and series of values have our names.

    A frame with several tickers becomes a mapping from them to frames. What is odd about a frame is added to
    ``notes``, or without them a Python warning.

    Raises:
        JobError: A frame cannot be read.
    """
    refuse_empty(candles)
    candles = candles if has_times else _framed(candles)
    is_list, is_mapping = isinstance(candles, list | tuple), isinstance(candles, Mapping)
    given = candles if is_mapping else dict(enumerate(candles)) if is_list else {"": candles}
    given = given if has_times else {name: _framed(each) for name, each in given.items()}
    names = {str(name).lower() for name in given}
    if names & {*COLUMNS, *TIME_COLUMNS} or not any(map(_is_table, given.values())):
        return candles
    found, said = dict[Any, Any](), list[str]()
    for name, each in given.items():
        of_it = list[str]()
        parts = _instruments(each, missing, has_times, of_it)
        found |= {(name, ticker): part for ticker, part in parts.items()}
        said += [f"the frame {name!r}: {text}" if is_mapping else text for text in of_it]
    for text in said:
        warnings.warn(text, stacklevel=2) if notes is None else notes.append(text)
    if is_list:
        return [*found.values()]
    named = {" ".join(filter(None, map(str, names))): part for names, part in found.items()}
    return named if is_mapping else named.get("", named)


def _framed(candles: Any) -> Any:
    """A frame of rows that are numbers (ccxt's), and of rows or columns with numbers as times (Polygon's)."""
    row: Any = candles[0] if isinstance(candles, list | tuple) and candles else None
    cells = row if isinstance(row, list | tuple) else [*row.values()] if isinstance(row, Mapping) else ()
    are_cells = len(cells) > 1 and all(isinstance(cell, str | int | float | date) for cell in cells)
    if not are_cells and not _has_numbers_as_times(candles):
        return candles
    titles = {str(title).lower(): title for title in row} if isinstance(row, Mapping) else {}
    if any(isinstance(row[titles[name]], str | date) for name in TIME_COLUMNS if name in titles):
        return candles
    try:
        import pandas as pd
    except ImportError:
        return candles
    return pd.DataFrame(candles).rename(columns=str)


def _has_numbers_as_times(candles: Any) -> bool:
    """Whether it is a mapping of columns with times such as seconds."""
    columns = candles.items() if isinstance(candles, Mapping) else ()
    times = [values for title, values in columns if str(title).lower() in TIME_COLUMNS]
    return any(isinstance(each, Iterable) and isinstance(next(iter(each), None), Real) for each in times)


def refuse_empty(candles: Any, field: str | None = None) -> None:
    """Raises JobError EMPTY_SERIES for a frame without rows, an empty list and an empty mapping."""
    if hasattr(candles, "__len__") and not len(candles):
        raise JobError(ErrorCode.EMPTY_SERIES, "the series has no bars: send some", field)


def _is_table(candles: Any) -> bool:
    """Whether it is a frame of pandas or polars, or a series of pandas."""
    return hasattr(candles, "to_parquet") or hasattr(candles, "write_parquet") or hasattr(candles, "to_frame")


def _instruments(candles: Any, missing: Missing, has_times: bool, notes: list[str]) -> dict[str, Any]:
    """Plain candles by ticker; by "" if there is one. What is odd about them is added to ``notes``."""
    labels, index = list(getattr(candles, "columns", ())), getattr(candles, "index", None)
    kind = getattr(getattr(index, "dtype", None), "kind", None)
    has_index = kind == "M"
    if not _is_table(candles) or (not labels and index is None):
        return {"": candles}
    refuse_empty(candles)
    is_value = len(labels) == 1 and has_index and str(labels[0]).lower() not in {*COLUMNS} - {"close"}
    if not labels or is_value:
        values = candles[labels[0]] if labels else candles
        values = values.sort_index() if has_index and not has_times else values
        kept = values.dropna() if missing == "error" else values
        if num_left_out := len(values) - len(kept):
            notes.append(f"rows without a value, left out: {num_left_out:,}")
        return {"": {TIMES: kept.index, VALUE: kept.to_numpy()}}
    parts = [part for label in labels for part in _levels(label)]
    names = [part.lower() for part in parts]
    bare = [part.strip("<> ") for part in parts]
    is_untitled = len(names) > 4 and all(name.isdecimal() for name in names)
    if parts == labels and are_numbers(parts) and not is_untitled:
        text = (
            "the titles of the frame are numbers: give header=None to pd.read_csv for a file without titles"
        )
        raise JobError(ErrorCode.MISSING_COLUMN, text)
    vendor, found = _vendor_of((*bare, str(getattr(index, "name", None) or "")))
    title = next((name for name in (*TIME_COLUMNS, "ds") if name in names), None)
    is_index = kind == "O" or parts[0] in UNNAMED_INDEX  # its texts may be times, also read again from CSV
    has_title = not has_index and str(getattr(index, "name", None)).lower() in TIME_TITLES
    if has_title and title is None and not has_times:
        return _read(candles.reset_index(), missing, notes)
    lacks_times = not (found.get(TIMES) or has_index or is_index or {*map(str.lower, bare)} & {*TIME_TITLES})
    if has_times and lacks_times and vendor not in (PLAIN, VALUES):
        return {"": candles.rename(columns=our_names(labels))}
    is_plain = vendor in (PLAIN, VALUES) and parts == bare == labels and not {*names} & {*SYMBOL_TITLES}
    is_pair = title == "date" and TIME_OF_DAY in names
    if is_plain and not (has_times or is_pair) and hasattr(candles, "iloc") and (title or has_index):
        sorted_candles = _in_order(candles, None if title is None else labels[names.index(title)], notes)
        if sorted_candles is not None and names.count("close") < 2:
            return {"": sorted_candles}
    if title is not None and not has_times:
        own = next(label for label in labels if title in map(str.lower, _levels(label)))
        has_times = _are_plain(candles[own]) and not is_pair
    elif has_index:
        has_times = has_times or _are_plain(index)
        if vendor in (PLAIN, VALUES):
            candles = candles.rename_axis(index=TIMES)
    is_ours = not {*found} & {"close", VALUE} or (vendor in (PLAIN, VALUES) and (has_times or lacks_times))
    is_spelt = parts == bare and not is_untitled and names.count("close") < 2
    return {"": candles} if is_ours and is_spelt else _read(candles, missing, notes)


def _vendor_of(titles: tuple[str, ...]) -> tuple[Vendor, dict[str, str]]:
    try:
        return _recognised(titles)
    except CandleFileError as error:
        raise JobError(ErrorCode.BAD_VALUE, f"the frame has {error.message}", error.field) from None


def our_names(labels: Iterable[Any]) -> dict[Any, str]:
    """Our names of a vendor's columns, but the times, by their titles."""
    titles = {str(label).strip("<> ").lower(): label for label in labels}
    _, found = _vendor_of((*titles,))
    return {titles[title]: name for name, title in found.items() if name in COLUMNS and title in titles}


def _in_order(frame: Any, title: Any, notes: list[str]) -> Any:
    """A frame of pandas in the order of its times; None if only the reader of files can read them."""
    import pandas as pd  # the frame is of pandas

    times = frame.index.to_series() if title is None else frame[title]
    if times.dtype.kind in "iu":
        unit: Any = EPOCH_UNITS.get(len(str(times.min()))) if times.min() > 0 else None
        if unit is None or len(str(times.max())) > len(str(times.min())) + (unit == "s"):
            return None
        wall = pd.to_datetime(times, unit=unit).to_numpy("datetime64[us]")
        texts = write_like("2024-06-18T09:35:00Z", wall, np.zeros(len(wall), np.int64))
        frame, instants = frame.assign(**{title: list(texts)}), pd.Series(wall)
    elif times.dtype.kind == "M":
        instants = times
    elif all(forms := [isinstance(time, str) and _ISO_TIME.fullmatch(time) for time in times]):
        if (
            len({form and form["offset"] is None for form in forms}) > 1
        ):  # the job refuses the first that differs
            return frame
        instants = pd.to_datetime(times, format="ISO8601", utc=True, errors="coerce")
    else:
        return None
    if instants.is_monotonic_increasing or instants.isna().any():  # the job refuses what has no time
        return frame
    notes.append("the bars are not in the order of their times: sorted")
    return frame.iloc[np.argsort(instants.to_numpy(), kind="stable")]


def _levels(label: Any) -> list[str]:
    return [str(part) for part in (label if isinstance(label, tuple) else (label,))]


def _are_plain(times: Any) -> bool:
    """Whether they are datetimes or ISO 8601 texts, each later than the one before it."""
    if getattr(times.dtype, "kind", None) == "M":
        return bool(times.is_monotonic_increasing and times.is_unique)
    texts = [*map(str, times)]
    return all(map(_ISO_TIME.fullmatch, texts)) and all(map(str.__lt__, texts, texts[1:]))


def plain_times(times: Any) -> Any:
    """A column of pandas with times in any form of files, as ISO 8601 texts; other columns as they are."""
    texts = [] if times.dtype.kind == "M" else [*map(str, times)]
    if all(map(_ISO_TIME.fullmatch, texts)):
        return times
    try:
        import pyarrow as pa

        from kronos_model.bars.files.clock import read_clock

        clock = read_clock(pa.chunked_array([pa.array(texts)]))
    except ImportError:
        return times
    except CandleFileError as error:
        raise JobError(ErrorCode.BAD_TIMESTAMP, error.message, str(times.name)) from None
    return times if np.isnat(clock.wall).any() else clock.texts(np.arange(len(texts)))


def _read(frame: Any, missing: Missing, notes: list[str]) -> dict[str, Any]:
    """The frame as a file with it is read."""
    try:
        from kronos_model.bars.files.lookback import CandleFile
    except ImportError as error:
        text = f"a frame with a vendor's titles, or such times, needs {error.name}: "
        text += "install kronos-worker[frames], or give it our titles and ISO 8601 times, oldest first"
        raise JobError(ErrorCode.NOT_INSTALLED, text) from None
    with TemporaryDirectory() as folder:
        path = Path(folder, "frame.parquet")
        (frame.to_parquet if hasattr(frame, "to_parquet") else frame.write_parquet)(path)
        try:
            file = CandleFile(path, ReadOptions(missing=missing))
            found = [file.last(MAX_BARS, name) for name in file.instruments]
        except CandleFileError as error:
            text = error.message.replace(str(path), "the frame")
            text += " to pd.read_csv, with thousands=" if error.field == "decimal" else ""
            repeats = isinstance(error, RepeatedTime)
            code = ErrorCode.TIMESTAMPS_NOT_ASCENDING if repeats else error.code
            raise JobError(code, text, error.field, error.details) from None
    notes += found[0].notes
    return {each.name: each.candles.assign(**_zoned(each)) for each in found}


def _zoned(found: "Lookback") -> dict[str, Any]:
    """The times in the zone that the frame names for them."""
    import pandas as pd  # reading a frame needs it already

    if found.timezone is None:
        return {}
    return {TIMES: pd.to_datetime(found.candles[TIMES], utc=True).dt.tz_convert(found.timezone)}
