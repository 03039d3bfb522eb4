"""From what apps hold (DataFrames, dicts of lists or arrays) to a series of the wire. No pandas needed."""

from collections.abc import Iterable, Mapping, Sequence
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


def job_series(
    candles: CandleSource | Sequence[CandleSource],
    series_ids: Sequence[str] | None,
    timestamps: Any,
    future_timestamps: Any,
    timezone: str | None,
) -> list[dict[str, Any]]:
    """The series of a job from one source or from a list of them.

    What is given for each of several sources comes as a list as long as theirs.

    Raises JobError with the field at fault.
    """
    several = isinstance(candles, list | tuple)
    sources = list(candles) if several else [candles]

    def one_each(values: Any, field: str) -> list[Any]:
        if values is None or not several:
            return [values] * len(sources)
        if len(values) != len(sources):
            raise JobError(
                ErrorCode.LENGTH_MISMATCH,
                f"{field} has {len(values)} entries for {len(sources)} series; give one for each",
                field,
            )
        return list(values)

    ids = [str(index) for index in range(len(sources))] if series_ids is None else list(series_ids)
    if len(ids) != len(sources):
        raise JobError(
            ErrorCode.LENGTH_MISMATCH, f"{len(ids)} series_ids for {len(sources)} series", "series_ids"
        )
    past, future = one_each(timestamps, "timestamps"), one_each(future_timestamps, "future_timestamps")
    payloads = []
    for index, source in enumerate(sources):
        try:
            payloads.append(
                series_payload(
                    source,
                    ids[index],
                    timestamps=past[index],
                    future_timestamps=future[index],
                    timezone=timezone,
                )
            )
        except JobError as error:
            field = f"series.{index}" + ("" if error.field is None else f".{error.field}")
            raise JobError(error.code, error.message, field, error.details) from None
    return payloads
