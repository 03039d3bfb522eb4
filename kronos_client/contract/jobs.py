"""Reading a job: from decoded JSON to a checked job, within the limits of its size, and on to arrays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import lru_cache
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from kronos_client.contract.columns import decode_column, num_values
from kronos_client.contract.errors import ErrorCode, JobError, refusal
from kronos_client.contract.forecast import CandleInput, ForecastJob, SeriesInput, WireModel
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.manifest import BarsInfo
from kronos_client.contract.names import SCHEMA_VERSION
from kronos_model.bars.calendar.offsets import offset_warning
from kronos_model.bars.calendar.spacing import Inferred, infer_future
from kronos_model.bars.columns import (
    COLUMNS,
    ONE_VALUE,
    ONLY_CLOSE,
    FloatArray,
    Instrument,
    check_candles,
    has_one_value,
    impossible_warning,
    time_features,
    to_bars,
)
from kronos_model.bars.missing import Filled, Missing
from kronos_model.bars.timestamps import (
    NUM_SHARED_TIMES,
    Timestamps,
    check_continues,
    load_timezone,
    parse_timestamps,
)
from kronos_model.errors import CandleError, KronosError, TimestampError
from kronos_model.seeds import derive_series_seed, seed_from_text
from kronos_model.text import MAX_INTEGER, excerpt

__all__ = ["ForecastJob", "Limits", "PreparedSeries", "parse_job", "prepare"]

AnyJob = TypeVar("AnyJob", bound=WireModel)


@dataclass(frozen=True, eq=False)
class PreparedSeries:
    """One series, checked. Arrays are read-only.

    Attributes:
        bars: (T, 6) float32, columns as ``COLUMNS``, filled in as ``to_bars`` does.
        stamps, future_stamps: time features of the wall clock as written, (T, 5) and (H, 5).
        future_timestamps: the H times in the form of the input.
        timestamps_from: how these were found, in words.
        timezone: the IANA zone on whose clock all times are, if the job names it.
        seed: for this series' draws.
        given: the bars that the job has, before ``last``.
        warnings: remarks for people who read the forecast.
    """

    id: str
    bars: FloatArray
    stamps: NDArray[np.int64]
    future_stamps: NDArray[np.int64]
    future_timestamps: tuple[str, ...]
    timestamps_from: str
    seed: int
    given: BarsInfo
    timezone: str | None = None
    warnings: tuple[str, ...] = ()

    def last(self, num_bars: int) -> "PreparedSeries":
        """The same series with at most so many bars of lookback, the last ones."""
        if num_bars >= len(self.bars):
            return self
        return replace(self, bars=self.bars[-num_bars:], stamps=self.stamps[-num_bars:])


@dataclass(frozen=True, eq=False)
class PreparedInstrument:
    """The candles of one instrument that a job carries, checked.

    Attributes:
        timestamps: T of them.
        columns: those that were given, each (T,) float64.
    """

    id: str
    timestamps: Timestamps
    columns: dict[str, NDArray[np.float64]]

    def as_instrument(self) -> Instrument:
        """The same as read from a file, with float32 bars."""
        times = self.timestamps
        wall, instants = (values.astype("datetime64[s]") for values in (times.wall, times.instants))
        return Instrument(self.id, to_bars(self.columns), wall, instants, times.is_aware)


def parse_job(payload: object, limits: Limits) -> ForecastJob:
    """Check a job from decoded JSON: its form, ranges and size. ``prepare`` checks columns and timestamps.

    Raises:
        JobError: Names the first field at fault; nothing else is raised.
    """
    job = read_job(payload, limits)
    check_job(job, limits)
    return job


def read_job(payload: object, limits: Limits) -> ForecastJob:
    """The part of ``parse_job`` that needs no model: version, absurd sizes, then fields and types."""
    return read_fields(ForecastJob, payload, limits, check_payload)


def read_fields(
    model: type[AnyJob], payload: object, limits: Limits, check_size: Callable[[dict[Any, Any], Limits], None]
) -> AnyJob:
    """The fields of a job from decoded JSON: its version and size are checked first.

    Raises:
        JobError: Names the first field at fault; nothing else is raised.
    """
    if not isinstance(payload, dict):
        raise JobError(ErrorCode.BAD_TYPE, f"job must be an object, not {excerpt(payload)}", "job")
    _check_version(payload.get("schema_version", SCHEMA_VERSION))
    check_size(payload, limits)
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        raise refusal(error, model) from None


def _check_version(version: object) -> None:
    """Refuse a ``schema_version`` that this code does not read, before anything else is checked.

    Raises:
        JobError: BAD_TYPE, UNSUPPORTED_VERSION.
    """
    field = "schema_version"
    if not isinstance(version, int) or isinstance(version, bool):
        raise JobError(ErrorCode.BAD_TYPE, f"{field} must be an integer, not {excerpt(version)}", field)
    if not 1 <= version <= SCHEMA_VERSION:
        known = f"only 1 to {SCHEMA_VERSION}: update the worker, or send a supported version"
        message = f"{field} {excerpt(version)} is not supported, {known}"
        raise JobError(ErrorCode.UNSUPPORTED_VERSION, message, field, {"newest": SCHEMA_VERSION})


def prepare(job: ForecastJob, job_id: str, limits: Limits) -> tuple[PreparedSeries, ...]:
    """The series of a job, in its order.

    The job's seed is given or follows from its id, so a job that is delivered twice draws the same values.
    Series 0 has the job's seed, series i one derived from (seed, i), unless the series gives its own.

    Raises:
        JobError: Names the field and the row at fault.
    """
    seed = job.sampling.seed if job.sampling.seed is not None else seed_from_text(job_id)
    prepared = []
    for index, series in enumerate(job.series):
        own_seed = series.seed if series.seed is not None else derive_series_seed(seed, index)
        prepared.append(_prepare_series(series, f"series.{index}.", job, own_seed, limits))
    return tuple(prepared)


def check_series(job: ForecastJob, limits: Limits) -> None:
    """Refuse a job as ``prepare`` does; raises JobError."""
    for index, series in enumerate(job.series):
        _read_series(series, f"series.{index}.", job, limits)


def _read_series(
    series: SeriesInput, prefix: str, job: ForecastJob, limits: Limits
) -> tuple[dict[str, NDArray[np.float64]], Timestamps, list[str], Inferred]:
    """The columns and timestamps of a series, remarks about them, and the future timestamps."""
    filled = _read_columns(series, prefix, job.missing, limits)
    try:
        zone = load_timezone(series.timezone) if series.timezone is not None else None
        lookback, given = _read_timestamps(series.timestamps, series.future_timestamps, zone)
        columns, lookback, remarks = filled.settled(lookback, job.missing, zone)
        if given is not None:
            future = Inferred(given, "the job", is_on_clock=True)
        elif series.calendar is not None:
            from kronos_model.bars.calendar.named_calendar import follow_calendar  # seldom needed

            future = follow_calendar(series.calendar, lookback, job.horizon, zone)
        else:
            future = infer_future(lookback, job.horizon, zone)
    except KronosError as error:
        raise JobError.from_kronos(error, prefix=prefix) from None
    if has_one_value(columns):
        for index, event in enumerate(job.output.events):
            if event.column != "close":
                text = (
                    f"{event.text!r} asks for the {event.column}, but {ONE_VALUE.lower()}: ask for the close"
                )
                raise JobError(ErrorCode.BAD_VALUE, text, f"output.events.{index}")
        remarks = [*remarks, f"{ONE_VALUE}. {ONLY_CLOSE}: backtest first."]
    return columns, lookback, remarks, future


def _prepare_series(
    series: SeriesInput, prefix: str, job: ForecastJob, seed: int, limits: Limits
) -> PreparedSeries:
    columns, lookback, remarks, future = _read_series(series, prefix, job, limits)
    is_on_clock = series.timezone is not None or future.is_on_clock
    offsets = None if is_on_clock else offset_warning(lookback, future.timestamps)
    texts = (*remarks, impossible_warning(columns, lookback.texts), future.warning, offsets)
    bars = to_bars(columns)
    stamps = time_features(np.concatenate([lookback.wall, future.timestamps.wall]))
    bars.flags.writeable = stamps.flags.writeable = False
    return PreparedSeries(
        id=series.id,
        bars=bars,
        stamps=stamps[: len(bars)],
        future_stamps=stamps[len(bars) :],
        future_timestamps=future.timestamps.texts,
        timestamps_from=future.rule,
        timezone=series.timezone,
        seed=seed,
        given=BarsInfo.of(lookback, bars),
        warnings=tuple(text for text in texts if text is not None),
    )


@lru_cache(maxsize=NUM_SHARED_TIMES)
def _read_timestamps(
    past: tuple[str, ...], future: tuple[str, ...] | None, zone: tzinfo | None
) -> tuple[Timestamps, Timestamps | None]:
    """The timestamps of the lookback, and those of the future if they are given."""
    if future is None:
        return parse_timestamps(past, zone=zone), None
    try:
        both = parse_timestamps((*past, *future), zone=zone)  # one pass takes less time than two
    except TimestampError:  # find out which is at fault
        lookback = parse_timestamps(past, zone=zone)
        check_continues(lookback, parse_timestamps(future, field="future_timestamps", zone=zone))
        raise
    return both[: len(past)], both[len(past) :]


def prepare_instruments(instruments: Sequence[CandleInput]) -> tuple[PreparedInstrument, ...]:
    """The instruments in the job's order; raises JobError with the field and the row at fault."""
    prepared = []
    for index, instrument in enumerate(instruments):
        prefix = f"data.instruments.{index}."
        columns = _read_columns(instrument, prefix, "error").columns
        try:
            timestamps = parse_timestamps(instrument.timestamps)
        except TimestampError as error:
            raise JobError.from_kronos(error, prefix=prefix) from None
        prepared.append(PreparedInstrument(instrument.id, timestamps, columns))
    return tuple(prepared)


def _read_columns(
    candles: CandleInput, prefix: str, missing: Missing, limits: Limits | None = None
) -> Filled:
    """The columns that were given, each (T,), one value for each timestamp; filled unless "error".

    Raises:
        JobError: Its field begins with ``prefix``, such as ``series.0.``.
    """
    given, columns = candles.columns(), {}
    for name, column in given.items():
        if limits is not None:
            check_max_bars(num_values(column), limits, f"{prefix}{name}")
    for name, column in given.items():
        columns[name] = decode_column(column, f"{prefix}{name}")
    try:
        filled = Filled.from_columns(columns, missing)
        check_candles(filled.columns)
    except CandleError as error:
        raise JobError.from_kronos(error, prefix=prefix) from None
    num_bars, num_timestamps = len(columns["open"]), len(candles.timestamps)
    if num_timestamps != num_bars:
        field, row = f"{prefix}timestamps", min(num_timestamps, num_bars)
        message = f"{field} has {num_timestamps} entries for {num_bars} bars: give one a bar"
        raise JobError(ErrorCode.LENGTH_MISMATCH, message, field, {"row": row})
    return filled


MAX_FIELDS: Final = 64
"""The most fields in one JSON object; far more than any object of the contract has."""

MAX_STREAM_BYTES: Final = 2 * 2**20
"""Bars of a job that are published early, up to once a second."""
BYTES_PER_NUMBER: Final = 20
"""A forecast's number as JSON: up to 17 digits, sign, point and comma."""
BYTES_PER_TIMESTAMP: Final = 30
BYTES_PER_SERIES: Final = 1024
"""Names of columns and quantiles, id and seed."""
BYTES_PER_EVENT: Final = 400
"""Its text, and the chance with its error, bounds and numbers of paths."""
STATISTICS: Final = 3


def check_payload(payload: dict[Any, Any], limits: Limits) -> None:
    """Refuse an absurdly large job before its form is checked. Raises JobError LIMIT_EXCEEDED."""
    _check_num_fields(payload, "job")
    for name in ("sampling", "output"):
        _check_num_fields(payload.get(name), name)
    series = payload.get("series")
    if not isinstance(series, list):
        return
    check_most(len(series), limits.max_series, "series", "series in a job: send several jobs")
    num_bytes = 0
    for place, columns in _columns(series, "series"):
        for name, values in columns.items():
            if name != "future_timestamps" and isinstance(values, list):  # the horizon has its own limit
                check_max_bars(len(values), limits, f"{place}.{name}")
            num_bytes += _num_bytes(values)
    check_most(num_bytes, limits.max_message_bytes, "series", "bytes in a job: send several jobs")


def check_data_payload(payload: dict[Any, Any], limits: Limits) -> None:
    """Refuse an absurdly large job that carries or names candles. Raises JobError LIMIT_EXCEEDED."""
    _check_num_fields(payload, "job")
    data = payload.get("data")
    if not isinstance(data, dict):
        return
    _check_num_fields(data, "data")
    field = "data.instruments"
    instruments = data.get("instruments")
    if not isinstance(instruments, list):
        return
    hint = "put them into files in the worker's data folder, and name those in data.path"
    # Each instrument has at least one bar, so too many are refused without reading each.
    check_most(len(instruments), limits.max_inline_bars, field, f"bars that a job carries: {hint}")
    num_bars = num_bytes = 0
    for _, columns in _columns(instruments, field):
        num_bars += max([1, *map(num_values, columns.values())])
        num_bytes += sum(map(_num_bytes, columns.values()))
    check_most(num_bars, limits.max_inline_bars, field, f"bars that a job carries: {hint}")
    check_most(num_bytes, limits.max_message_bytes, field, f"bytes in a job: {hint}")


def _columns(candles: list[Any], field: str) -> Iterator[tuple[str, dict[str, list[Any] | str]]]:
    """Each object's place, and its columns and timestamps, as far as they have the right type."""
    for index, entry in enumerate(candles):
        if isinstance(entry, dict):
            place, columns = f"{field}.{index}", {}
            _check_num_fields(entry, place)
            for name in ("timestamps", *COLUMNS, "future_timestamps"):
                if isinstance(values := entry.get(name), list | str):
                    columns[name] = values
            yield place, columns


def _num_bytes(values: list[Any] | str) -> int:
    """The minimum size of these values as JSON, with a comma after each."""
    if isinstance(values, str):
        return len(values)
    with suppress(TypeError):  # the usual case, all texts, and ten times faster
        return len("".join(values)) + 3 * len(values)
    return sum(len(value) + 3 if isinstance(value, str) else 2 for value in values)


def _check_num_fields(part: object, field: str) -> None:
    if isinstance(part, dict):  # each unknown field would cost an error report of its own
        check_most(len(part), MAX_FIELDS, field, "fields in an object: see the contract")


def check_job(job: ForecastJob, limits: Limits) -> None:
    """Refuse a job that asks for too much.

    Raises:
        JobError: LIMIT_EXCEEDED, PRED_LEN_TOO_LONG, RESULT_TOO_LARGE.
    """
    field, samples = "sampling.sample_count", job.sampling.sample_count
    check_most(samples, limits.max_sample_count, field, "sample paths a series")
    text = "sample paths in a job, over all its series: send several jobs"
    check_most(samples * len(job.series), limits.max_paths, field, text)
    text = "bars ahead, the most that the model can see: ask for fewer"
    check_most(job.horizon, limits.max_pred_len, "pred_len", text, ErrorCode.PRED_LEN_TOO_LONG)
    text = "bytes in a result, as estimated: ask for fewer series, quantiles, bars or no paths"
    check_most(result_bytes(job), limits.max_result_bytes, "output", text, ErrorCode.RESULT_TOO_LARGE)
    if job.output.stream:
        text = "bytes sent at once, as estimated: ask for fewer series, quantiles or bars, or without it"
        num_bytes = result_bytes(job, with_paths=False)
        check_most(num_bytes, MAX_STREAM_BYTES, "output.stream", text, ErrorCode.RESULT_TOO_LARGE)


def result_bytes(job: ForecastJob, *, with_paths: bool = True) -> int:
    """An upper estimate of the result's size as JSON."""
    num_paths = job.sampling.sample_count if with_paths and job.output.paths else 0
    tables = 1 + len(job.output.quantiles) + num_paths
    per_bar = BYTES_PER_TIMESTAMP + tables * len(COLUMNS) * BYTES_PER_NUMBER
    answers = BYTES_PER_EVENT * len(job.output.events)
    if job.output.statistics:
        answers += STATISTICS * (BYTES_PER_EVENT + 2 * BYTES_PER_NUMBER * len(job.output.quantiles))
    return len(job.series) * (BYTES_PER_SERIES + answers + job.horizon * per_bar)


def check_max_bars(num_bars: int, limits: Limits, field: str) -> None:
    """Refuse a column or series that is too long. Raises JobError LIMIT_EXCEEDED."""
    check_most(num_bars, limits.max_bars, field, "bars in a series: send the newest ones")


def check_most(
    actual: int, limit: int, field: str, what: str, code: ErrorCode = ErrorCode.LIMIT_EXCEEDED
) -> None:
    """Refuse more of ``what`` than the limit."""
    if actual > limit:
        shown = min(actual, MAX_INTEGER)
        message = f"{field}: {shown} is more than the worker's limit of {limit} {what}"
        raise JobError(code, message, field, {"limit": limit, "actual": shown})
