"""From what apps hold (DataFrames, dicts of lists or arrays) to a series of the wire. No pandas needed."""

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.candles import COLUMNS
from worker.contract.columns import encode_column
from worker.contract.errors import ErrorCode, JobError

TIMESTAMP_NAMES: Final = ("timestamps", "timestamp", "datetime", "date", "time")

CandleSource = Any
"""A pandas or polars DataFrame, or a mapping, with the price columns, volume, amount and timestamps."""


def series_payload(
    candles: CandleSource,
    series_id: str,
    *,
    timestamps: Iterable[Any] | None = None,
    future_timestamps: Iterable[Any] | None = None,
    timezone: str | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """One series as the contract has it, its columns as base64 of float32.

    Column names count without regard to case. Timestamps are taken from the argument, else from a column
    named like one of ``TIMESTAMP_NAMES``, else from a DataFrame's DatetimeIndex; strings stay as they are.

    Raises JobError where timestamps or columns cannot be read; whether they make sense is for the contract.
    """
    given: Any = getattr(candles, "columns", candles)
    if not isinstance(given, Iterable) or not hasattr(candles, "__getitem__"):
        raise JobError(
            ErrorCode.BAD_TYPE,
            f"candles must be a DataFrame or a mapping of columns, not {type(candles).__name__}",
        )
    names = {str(name).lower(): name for name in given}
    columns = {name: _numbers(candles[names[name]], name) for name in COLUMNS if name in names}
    payload: dict[str, Any] = {
        "id": series_id,
        "timestamps": _texts(_find_timestamps(candles, names) if timestamps is None else timestamps),
        **{name: encode_column(values) for name, values in columns.items()},
    }
    if future_timestamps is not None:
        payload["future_timestamps"] = _texts(future_timestamps)
    if timezone is not None:
        payload["timezone"] = timezone
    if seed is not None:
        payload["seed"] = seed
    return payload


def _find_timestamps(candles: CandleSource, names: Mapping[str, Any]) -> Iterable[Any]:
    for name in TIMESTAMP_NAMES:
        if name in names:
            values: Iterable[Any] = candles[names[name]]
            return values
    index = getattr(candles, "index", None)
    if getattr(getattr(index, "dtype", None), "kind", None) == "M":
        times: Iterable[Any] = index  # type: ignore[assignment]
        return times
    raise JobError(
        ErrorCode.MISSING_FIELD,
        f"no timestamps: give a column named one of {', '.join(TIMESTAMP_NAMES)}, a DatetimeIndex, or pass "
        "timestamps=",
        "timestamps",
    )


def _numbers(values: Any, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    try:
        with np.errstate(
            over="ignore"
        ):  # what float32 cannot hold becomes infinite, which the contract refuses
            return np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError):
        raise JobError(
            ErrorCode.BAD_TYPE, f"column {name!r} holds something that is not a number", name
        ) from None


def _texts(timestamps: Any) -> list[str]:
    if isinstance(timestamps, str) or not isinstance(timestamps, Iterable):
        raise JobError(
            ErrorCode.BAD_TYPE, f"timestamps must be a list, not {type(timestamps).__name__}", "timestamps"
        )
    if isinstance(timestamps, np.ndarray) and timestamps.dtype.kind == "M":
        return _numpy_texts(timestamps)
    return [_text(value) for value in timestamps]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, datetime | date):  # pandas' Timestamp is a datetime
        return value.isoformat()
    if isinstance(value, np.datetime64):
        return _numpy_texts(np.array([value]))[0]
    raise JobError(
        ErrorCode.BAD_TIMESTAMP,
        f"timestamps must be ISO 8601 strings, datetimes or numpy datetimes, not {type(value).__name__}",
        "timestamps",
    )


def _numpy_texts(times: NDArray[np.datetime64]) -> list[str]:
    """To the second, or to the microsecond where any has a fraction."""
    seconds = times.astype("datetime64[s]")
    whole = bool((seconds == times)[~np.isnat(times)].all())
    return [str(text) for text in np.datetime_as_string(seconds if whole else times.astype("datetime64[us]"))]
