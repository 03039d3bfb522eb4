"""A job's candles as arrays; a forecast's series also with their future timestamps and seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kronos_client.contract.columns import decode_column, num_values
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import CandleInput, ForecastJob, SeriesInput
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.limits import check_max_bars
from kronos_model.bars.calendar.continuing import Inferred
from kronos_model.bars.calendar.named import follow_calendar
from kronos_model.bars.calendar.spacing import infer_future
from kronos_model.bars.columns import FloatArray, time_features, to_bars
from kronos_model.bars.instrument import Instrument
from kronos_model.bars.missing import Filled, Missing
from kronos_model.bars.timestamps import Timestamps, check_continues, load_timezone, parse_timestamps
from kronos_model.bars.validation import check_candles, check_shape, impossible_warning
from kronos_model.errors import CandleError, KronosError, TimestampError
from kronos_model.seeds import derive_series_seed, seed_from_text

Array = TypeVar("Array", NDArray[np.float64], NDArray[np.datetime64])


@dataclass(frozen=True, eq=False)
class PreparedSeries:
    """One series, checked. Arrays are read-only.

    Attributes:
        columns: those that were given, each (T,) float64.
        wall, future_wall: wall clocks as written, (T,) and (H,) datetime64[s].
        future_timestamps: the same H times in the form of the input.
        timestamps_from: how these were found, in words.
        seed: for this series' draws.
        warnings: remarks for people who read the forecast.
    """

    id: str
    columns: dict[str, NDArray[np.float64]]
    wall: NDArray[np.datetime64]
    future_wall: NDArray[np.datetime64]
    future_timestamps: tuple[str, ...]
    timestamps_from: str
    seed: int
    warnings: tuple[str, ...] = ()

    def last(self, num_bars: int) -> "PreparedSeries":
        """The same series with at most so many bars of lookback, the last ones."""
        columns = {name: values[-num_bars:] for name, values in self.columns.items()}
        return replace(self, columns=columns, wall=self.wall[-num_bars:])

    def arrays(self) -> tuple[FloatArray, NDArray[np.int64], NDArray[np.int64]]:
        """What a model reads: bars (T, 6), their time features (T, 5), and those of the forecast (H, 5)."""
        stamps = time_features(np.concatenate([self.wall, self.future_wall]))
        return to_bars(self.columns), stamps[: len(self.wall)], stamps[len(self.wall) :]


@dataclass(frozen=True, eq=False)
class PreparedInstrument:
    """The candles of one instrument that a job carries, checked.

    Attributes:
        timestamps: T of them.
        columns: those that were given, each (T,) float64 and read-only.
    """

    id: str
    timestamps: Timestamps
    columns: dict[str, NDArray[np.float64]]

    def as_instrument(self) -> Instrument:
        """The same as read from a file, with float32 bars."""
        times = self.timestamps
        wall, instants = (values.astype("datetime64[s]") for values in (times.wall, times.instants))
        return Instrument(self.id, to_bars(self.columns), wall, instants, times.is_aware)


def prepare(job: ForecastJob, job_id: str, limits: Limits) -> tuple[PreparedSeries, ...]:
    """The series of a job, in its order.

    The job's seed is given or follows from its id, so a job that is delivered twice draws the same values.
    Series 0 has the job's seed, series i one derived from (seed, i), unless the series gives its own.

    Raises:
        JobError: Names the field and the row at fault.
    """
    seed = job.sampling.seed if job.sampling.seed is not None else seed_from_text(job_id)
    return tuple(
        _prepare_series(series, f"series.{index}.", job, derive_series_seed(seed, index), limits)
        for index, series in enumerate(job.series)
    )


def _prepare_series(
    series: SeriesInput, prefix: str, job: ForecastJob, seed: int, limits: Limits
) -> PreparedSeries:
    for name, column in series.columns().items():
        check_max_bars(num_values(column), limits, f"{prefix}{name}")
    filled = _read_columns(series, prefix, job.missing)
    try:
        zone = load_timezone(series.timezone) if series.timezone is not None else None
        lookback = parse_timestamps(series.timestamps, zone=zone)
        columns, lookback, remarks = filled.settled(lookback, job.missing)
        future = _future(series, lookback, job.horizon, zone)
    except KronosError as error:
        raise JobError.from_kronos(error, prefix=prefix) from None
    texts = (*remarks, impossible_warning(columns, lookback.texts), future.warning)
    return PreparedSeries(
        id=series.id,
        columns={name: _read_only(values) for name, values in columns.items()},
        wall=_read_only(lookback.wall.astype("datetime64[s]")),
        future_wall=_read_only(future.timestamps.wall.astype("datetime64[s]")),
        future_timestamps=future.timestamps.texts,
        timestamps_from=future.rule,
        seed=series.seed if series.seed is not None else seed,
        warnings=tuple(text for text in texts if text is not None),
    )


def prepare_instruments(instruments: Sequence[CandleInput]) -> tuple[PreparedInstrument, ...]:
    """The instruments in the job's order; raises JobError with the field and the row at fault."""
    return tuple(_prepare_instrument(one, f"data.instruments.{i}.") for i, one in enumerate(instruments))


def _prepare_instrument(instrument: CandleInput, prefix: str) -> PreparedInstrument:
    columns = _read_columns(instrument, prefix, "error").columns
    try:
        timestamps = parse_timestamps(instrument.timestamps)
    except TimestampError as error:
        raise JobError.from_kronos(error, prefix=prefix) from None
    return PreparedInstrument(
        instrument.id, timestamps, {name: _read_only(values) for name, values in columns.items()}
    )


def _read_columns(candles: CandleInput, prefix: str, missing: Missing) -> Filled:
    """The columns that were given, each (T,), one value for each timestamp; filled unless "error".

    Raises:
        JobError: Its field begins with ``prefix``, such as ``series.0.``.
    """
    columns = {name: decode_column(column, f"{prefix}{name}") for name, column in candles.columns().items()}
    try:
        check_shape(columns)
        filled = Filled.of(columns, missing)
        check_candles(filled.columns)
    except CandleError as error:
        raise JobError.from_kronos(error, prefix=prefix) from None
    num_bars, num_timestamps = len(columns["open"]), len(candles.timestamps)
    if num_timestamps != num_bars:
        field, row = f"{prefix}timestamps", min(num_timestamps, num_bars)
        message = f"{field} has {num_timestamps} entries for {num_bars} bars: give one a bar"
        raise JobError(ErrorCode.LENGTH_MISMATCH, message, field, {"row": row})
    return filled


def _future(series: SeriesInput, lookback: Timestamps, horizon: int, zone: tzinfo | None) -> Inferred:
    if series.future_timestamps is None:
        if series.calendar is not None:
            return follow_calendar(series.calendar, lookback, horizon, zone)
        return infer_future(lookback, horizon, zone)
    future = parse_timestamps(series.future_timestamps, field="future_timestamps", zone=zone)
    check_continues(lookback, future)
    return Inferred(future, "the job")


def _read_only(values: Array) -> Array:
    values.flags.writeable = False
    return values
