"""Frames as vendors' libraries make them, and series of one value a bar, as candles with our names."""

import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.columns import COLUMNS, TIME_COLUMNS
from kronos_model.bars.files.header import UNNAMED_INDEX
from kronos_model.bars.files.options import TIMES, VALUE, ReadOptions
from kronos_model.bars.files.vendors import PLAIN, VALUES, recognise
from kronos_model.bars.missing import Missing
from kronos_model.errors import CandleFileError

if TYPE_CHECKING:
    from kronos_model.bars.files.lookback import Lookback

MAX_BARS: Final = 2**31
INSTALL: Final = "pip install pyarrow, by which vendors' frames are read, or give the columns our names"
_recognised = lru_cache(recognise)


def plain_candles(candles: Any, missing: Missing = "error", *, has_times: bool = False) -> Any:
    """The candles, where frames of vendors and series of values have our names.

    A frame with several tickers becomes a mapping from them to frames.

    Raises:
        JobError: A frame cannot be read.
    """
    is_list, is_mapping = isinstance(candles, list | tuple), isinstance(candles, Mapping)
    given = candles if is_mapping else dict(enumerate(candles)) if is_list else {"": candles}
    names = {str(name).lower() for name in given}
    if names & {*COLUMNS, *TIME_COLUMNS} or not any(map(_is_table, given.values())):
        return candles
    found = {
        (name, ticker): part
        for name, each in given.items()
        for ticker, part in _instruments(each, missing, has_times).items()
    }
    if is_list:
        return [*found.values()]
    named = {" ".join(filter(None, map(str, names))): part for names, part in found.items()}
    return named.get("", named)


def _is_table(candles: Any) -> bool:
    """Whether it is a frame of pandas or polars, or a series of pandas."""
    return hasattr(candles, "to_parquet") or hasattr(candles, "write_parquet") or hasattr(candles, "to_frame")


def _instruments(candles: Any, missing: Missing, has_times: bool) -> dict[str, Any]:
    """Plain candles by ticker; by "" if there is one."""
    labels, index = list(getattr(candles, "columns", ())), getattr(candles, "index", None)
    kind = getattr(getattr(index, "dtype", None), "kind", None)
    has_index = kind == "M"
    if not _is_table(candles) or (not labels and index is None):
        return {"": candles}
    is_value = len(labels) == 1 and has_index and str(labels[0]).lower() not in {*COLUMNS} - {"close"}
    if not labels or is_value:
        values = candles[labels[0]] if labels else candles
        kept = values.dropna() if missing == "error" else values
        if num_left_out := len(values) - len(kept):
            warnings.warn(f"rows without a value, left out: {num_left_out:,}", stacklevel=2)
        return {"": {TIMES: kept.index, VALUE: kept.to_numpy()}}
    parts = [str(part) for label in labels for part in (label if isinstance(label, tuple) else (label,))]
    names = [part.lower() for part in parts]
    try:
        vendor, found = _recognised((*parts, str(getattr(index, "name", None) or "")))
    except CandleFileError as error:
        raise JobError(ErrorCode.BAD_VALUE, f"the frame has {error.message}", error.field) from None
    has_times = has_times or has_index or bool({*names} & {*TIME_COLUMNS, "ds"})
    is_index = (
        kind == "O" or parts[0] in UNNAMED_INDEX
    )  # texts in an index may be times, also read again from CSV
    lacks_times = not found.get(TIMES) and not is_index
    is_ours = not {*found} & {"close", VALUE} or (vendor in (PLAIN, VALUES) and (has_times or lacks_times))
    is_untitled = len(names) > 4 and all(name.isdecimal() for name in names)
    return (
        {"": candles} if is_ours and not is_untitled and names.count("close") < 2 else _read(candles, missing)
    )


def _read(frame: Any, missing: Missing) -> dict[str, Any]:
    """The frame as a file with it is read."""
    try:
        from kronos_model.bars.files.lookback import CandleFile
    except ImportError:
        raise JobError(ErrorCode.BAD_TYPE, f"the frame is that of a vendor: {INSTALL}") from None
    with TemporaryDirectory() as folder:
        path = Path(folder, "frame.parquet")
        (frame.to_parquet if hasattr(frame, "to_parquet") else frame.write_parquet)(path)
        try:
            file = CandleFile(path, ReadOptions(missing=missing))
            found = [file.last(MAX_BARS, name) for name in file.instruments]
        except CandleFileError as error:
            text = error.message.replace(str(path), "the frame")
            text += " to pd.read_csv, with thousands=" if error.field == "decimal" else ""
            raise JobError(error.code, text, error.field, error.details) from None
    for note in found[0].notes:
        warnings.warn(note, stacklevel=2)
    return {each.name: each.candles.assign(**_zoned(each)) for each in found}


def _zoned(found: "Lookback") -> dict[str, Any]:
    """The times in the zone that the frame names for them."""
    import pandas as pd  # reading a frame needs it already

    if found.timezone is None:
        return {}
    return {TIMES: pd.to_datetime(found.candles[TIMES], utc=True).dt.tz_convert(found.timezone)}
