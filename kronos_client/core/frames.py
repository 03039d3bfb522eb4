"""Frames as vendors' libraries make them, and series of one value a bar, as candles with our names."""

import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS, TIME_COLUMNS
from kronos_model.bars.files.options import TIMES, VALUE, ReadOptions
from kronos_model.bars.files.vendors import PLAIN, VALUES, recognise
from kronos_model.bars.missing import Missing
from kronos_model.errors import CandleFileError

INSTALL: Final = "pip install pyarrow, with which frames of vendors are read, or give the columns our names"


def plain_candles(candles: Any, missing: Missing = "error", *, has_times: bool = False) -> Any:
    """The candles, where frames of vendors and series of values have our names.

    A frame with several tickers becomes a mapping from them to frames.

    Raises:
        JobError: A frame cannot be read.
    """
    if isinstance(candles, list | tuple):
        parts = [_instruments(each, missing, has_times) for each in candles]
        return [each for part in parts for each in part.values()] if any(map(_is_table, candles)) else candles
    if isinstance(candles, Mapping):
        names = {str(name).lower() for name in candles}
        if not candles or names & {*COLUMNS, *TIME_COLUMNS} or not all(map(_is_table, candles.values())):
            return candles
        return {
            " ".join(filter(None, (str(name), ticker))): part
            for name, each in candles.items()
            for ticker, part in _instruments(each, missing, has_times).items()
        }
    parts_of_one = _instruments(candles, missing, has_times)
    return parts_of_one.get("", parts_of_one)


def _is_table(candles: Any) -> bool:
    """Whether it is a frame of pandas or polars, or a series of pandas."""
    return any(hasattr(candles, name) for name in ("to_parquet", "write_parquet")) or (
        hasattr(candles, "to_frame") and hasattr(candles, "index")
    )


def _instruments(candles: Any, missing: Missing, has_times: bool) -> dict[str, Any]:
    """Plain candles by ticker; by "" if there is one."""
    if not _is_table(candles):
        return {"": candles}
    labels = list(getattr(candles, "columns", ["value"]))
    index: Any = getattr(candles, "index", None)
    has_index = getattr(getattr(index, "dtype", None), "kind", None) == "M"
    if not hasattr(candles, "columns") or (len(labels) == 1 and has_index):
        values = candles if not hasattr(candles, "columns") else candles[labels[0]]
        kept = values[values.notna()]
        if len(kept) < len(values):
            warnings.warn(f"rows without a value, left out: {len(values) - len(kept):,}", stacklevel=2)
        return {"": {TIMES: kept.index, VALUE: kept.to_numpy()}}
    names = [str(label).lower() for label in labels if not isinstance(label, tuple)]
    levels = [str(part).lower() for label in labels if isinstance(label, tuple) for part in label]
    has_numbers = len(names) > len(PRICE_COLUMNS) and all(name.isdecimal() for name in names)
    has_several = levels.count("close") > 1
    own = [str(index.name).lower()] if getattr(index, "name", None) is not None else []
    try:
        vendor, found = _recognised((*names, *own))
    except CandleFileError as error:
        raise JobError(ErrorCode.BAD_VALUE, f"the frame has {error.message}", error.field) from None
    is_ours = vendor in (PLAIN, VALUES) and (has_times or has_index or bool({*names} & {*TIME_COLUMNS, "ds"}))
    if not has_several and not has_numbers and (is_ours or not {*PRICE_COLUMNS, VALUE} & found.keys()):
        return {"": candles}
    return _read(candles, missing)


_recognised = lru_cache(recognise)


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
            found = [file.last(np.iinfo(np.int64).max, name) for name in file.instruments]
        except CandleFileError as error:
            text = error.message.replace(str(path), "the frame")
            raise JobError(error.code, text, error.field, error.details) from None
    for note in found[0].notes:
        warnings.warn(note, stacklevel=2)
    return {each.name: each.candles for each in found}
