"""Candles as arrays: column order, checks, filling of missing columns, scaling, time features, output repair.

Arrays of bars are ``(..., T, 6)`` in the order of ``COLUMNS``. No torch here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.errors import CandleError

PRICE_COLUMNS: Final = ("open", "high", "low", "close")
COLUMNS: Final = (*PRICE_COLUMNS, "volume", "amount")
OPEN, HIGH, LOW, CLOSE, VOLUME, AMOUNT = range(len(COLUMNS))

TIME_COLUMNS: Final = ("timestamps", "timestamp", "datetime", "date", "time")
"""Titles of time columns in files, the likeliest first."""

TIME_FEATURES: Final = ("minute", "hour", "weekday", "day", "month")
DAYS_OF_400_YEARS: Final = 146_097

STD_EPSILON: Final = 1e-5
"""Added to each column's standard deviation, so that a constant column scales to zero."""
SMALL_DEVIATION: Final = 1e-4
"""Columns that deviate by less are scaled to a larger size first."""
MAX_MAGNITUDE: Final = 1e17
"""Beyond it the sum of squares over a long lookback, which scaling needs, leaves float32's range."""

IMPOSSIBLE: Final = "IMPOSSIBLE_CANDLE"
SMALLEST_PRICE: Final = float(np.finfo(np.float32).tiny)
"""Prices above it are above zero as float32."""
LARGEST: Final = {"amount": MAX_MAGNITUDE**2}
"""The largest value of a column, if not ``MAX_MAGNITUDE``: an amount is a volume times a price."""

ONE_VALUE: Final = "Each bar has one value, which is its open, high, low and close"
ONLY_CLOSE: Final = (
    "Only the close of the forecast means something. Models trained on candles may give such series too "
    "narrow intervals"
)
RATES: Final = "the model reads prices, so rates and other values of 0 or below cannot be forecast"

FloatArray = NDArray[np.float32]


def check_price_columns(columns: Mapping[str, Any]) -> None:
    """Raise CandleError (MISSING_COLUMN) if a price column is missing."""
    for name in PRICE_COLUMNS:
        if name not in columns:
            raise column_error("MISSING_COLUMN", name, f" is missing; needed are {', '.join(PRICE_COLUMNS)}")


def column_error(code: str, name: str, text: str, **details: int) -> CandleError:
    """An error about a column; ``text`` follows its name."""
    return CandleError(f"column {name!r}{text}", code=code, field=name, details=details)


def check_candles(columns: Mapping[str, NDArray[Any]]) -> None:
    """Refuse columns (each (T,), numeric) that the model cannot use.

    The first defect is reported, with its column as ``field`` and its first row in ``details["row"]``. A high
    below open or close is no defect as long as it is not below the low: it is common in vendors' data and
    does no harm. ``impossible_warning`` names it.

    Raises CandleError: MISSING_COLUMN, UNKNOWN_COLUMN, LENGTH_MISMATCH (also if not one-dimensional),
    EMPTY_SERIES, NOT_FINITE, VALUE_TOO_LARGE, NON_POSITIVE_PRICE (also one that is zero as float32),
    HIGH_BELOW_LOW, NEGATIVE_VOLUME (also the amount), checked in this order, each over all columns.
    """
    check_shape(columns)
    table = np.array([columns[name] for name in COLUMNS if name in columns])  # (C, T)
    prices_fit = table[: len(PRICE_COLUMNS)].min() > SMALLEST_PRICE
    are_ordered = not np.count_nonzero(table[HIGH] < table[LOW])
    if prices_fit and are_ordered and table.min() >= 0 and table.max() <= MAX_MAGNITUDE:  # not if one is NaN
        return
    for code, name, at_fault, defect in defects_of(columns):
        if at_fault.any():
            row = int(np.argmax(at_fault))
            defect += f": {RATES}" if code == "NON_POSITIVE_PRICE" and has_one_value(columns) else ""
            defect += ', or set missing to "ffill" or "drop"' if np.isnan(columns[name][row]) else ""
            raise column_error(code, name, f", row {row}: {_as_given(columns[name][row])} {defect}", row=row)


def defects_of(columns: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, str, NDArray[np.bool_], str]]:
    """The checks of single bars, in their order.

    Yields:
        The error's code, the column, whether each bar is at fault (T,), and the defect in words.
    """
    for name, values in columns.items():
        yield "NOT_FINITE", name, ~np.isfinite(values), "is not a finite number: fill or drop the bar"
    for name, values in columns.items():
        largest = LARGEST.get(name, MAX_MAGNITUDE)
        text = f"is beyond ±{largest:g}: give it in a larger unit"
        yield "VALUE_TOO_LARGE", name, np.abs(values) > largest, text
    for name in PRICE_COLUMNS:
        too_low = np.asarray(columns[name], dtype=np.float32) <= 0
        yield "NON_POSITIVE_PRICE", name, too_low, "is not a price above zero"
    below = np.asarray(columns["high"]) < np.asarray(columns["low"])
    yield "HIGH_BELOW_LOW", "high", below, "is below the low of the same bar"
    for name in COLUMNS[len(PRICE_COLUMNS) :]:
        if name in columns:
            yield "NEGATIVE_VOLUME", name, np.asarray(columns[name]) < 0, "is below zero"


def impossible_prices(
    columns: Mapping[str, NDArray[Any]],
) -> Iterator[tuple[str, str, NDArray[np.bool_], str]]:
    """Checks as in ``defects_of``: open and close outside low to high, common in vendors' data."""
    for name in ("open", "close"):
        yield IMPOSSIBLE, name, columns[name] > columns["high"], "is above the high of the same bar"
        yield IMPOSSIBLE, name, columns[name] < columns["low"], "is below the low of the same bar"


def _as_given(value: float) -> str:
    """The shortest text of a number, which the wire may have as float32."""
    with np.errstate(over="ignore"):
        short = np.float32(value)
    return repr(float(str(short)) if short == value else float(value))


def has_one_value(columns: Mapping[str, NDArray[Any]]) -> bool:
    """Whether open, high, low and close are equal in every bar of two or more: a series of closes."""
    close = columns["close"]
    return len(close) > 1 and all(
        np.array_equal(columns[name], close, equal_nan=True) for name in PRICE_COLUMNS
    )


def impossible_warning(columns: Mapping[str, NDArray[Any]], times: Sequence[str]) -> str | None:
    """A warning that names the first bar whose open or close lies outside low to high."""
    opens, closes = columns["open"], columns["close"]
    is_odd = (np.maximum(opens, closes) > columns["high"]) | (np.minimum(opens, closes) < columns["low"])
    if not (num_odd := np.count_nonzero(is_odd)):
        return None
    found = [(np.flatnonzero(at_fault), name, text) for _, name, at_fault, text in impossible_prices(columns)]
    row, name, text = min((rows[0], name, text) for rows, name, text in found if len(rows))
    count = "1 bar has" if num_odd == 1 else f"{num_odd:,} bars have"
    first = f"at {times[row]}, {name} {_as_given(columns[name][row])} {text}"
    return f"{count} an open or close outside low to high: {first}"


def check_shape(columns: Mapping[str, NDArray[Any]]) -> None:
    """The part of ``check_candles`` that reads no value: which columns there are, and their lengths."""
    check_price_columns(columns)
    num_bars = len(columns["open"]) if np.ndim(columns["open"]) == 1 else -1
    for name, values in columns.items():
        if name not in COLUMNS:
            raise column_error("UNKNOWN_COLUMN", name, f" is not known: the columns are {', '.join(COLUMNS)}")
        if np.ndim(values) != 1:
            raise column_error("LENGTH_MISMATCH", name, f" must have one dimension, not {np.ndim(values)}")
        if len(values) != num_bars:
            text = f" has {len(values)} values, but 'open' has {num_bars}: give one value a bar"
            raise column_error("LENGTH_MISMATCH", name, text, row=min(len(values), num_bars))
    if num_bars == 0:
        raise CandleError("the series has no bars: send some", code="EMPTY_SERIES", field="open")


def to_bars(columns: Mapping[str, NDArray[Any]]) -> FloatArray:
    """The six columns as one (T, 6) float32 array, with volume and amount filled in if they are missing.

    A missing volume becomes 0. A missing amount becomes ``volume · mean(open, high, low, close)``, so 0
    without a volume. A given amount is kept even if the volume is missing.

    Raises CandleError (MISSING_COLUMN) if a price column is missing.
    """
    check_price_columns(columns)
    bars = np.zeros((len(columns["open"]), len(COLUMNS)), dtype=np.float32)
    for index, name in enumerate(COLUMNS):
        if name in columns:
            bars[:, index] = columns[name]
    if "volume" in columns and "amount" not in columns:
        bars[:, AMOUNT] = columns["volume"] * np.mean([columns[name] for name in PRICE_COLUMNS], axis=0)
    return bars


@dataclass(frozen=True)
class Scaling:
    """Each column's own mean and standard deviation (population) over a lookback.

    Attributes:
        exponent: each column is multiplied by 2 to the power of it first, (..., 1, 6) int32. It is 0 if the
            column is of ordinary size; see ``_exponents``.
        mean, std: of the columns after that, (..., 1, 6) float32.
    """

    exponent: NDArray[np.int32]
    mean: FloatArray
    std: FloatArray

    @classmethod
    def fit(cls, bars: FloatArray) -> "Scaling":
        """Scaling from all given bars (..., T, 6), not only from those that fit the context."""
        # Columns are contiguous in memory, so they sum pairwise: long float32 sums stay exact.
        columns = np.ascontiguousarray(bars.swapaxes(-1, -2)).swapaxes(-1, -2)  # (..., T, 6)
        exponent = _exponents(columns)
        columns = np.ldexp(columns, exponent)
        return cls(exponent, columns.mean(axis=-2, keepdims=True), columns.std(axis=-2, keepdims=True))

    def apply(self, bars: FloatArray, clip: float) -> FloatArray:
        """Scaled bars, clipped to ±clip."""
        with np.errstate(over="ignore"):  # bars after the lookback may be far larger; infinity is clipped
            scaled = np.ldexp(bars, self.exponent)
        scaled -= self.mean
        scaled /= self.std + np.float32(STD_EPSILON)
        return np.clip(scaled, -clip, clip, out=scaled)

    def undo(self, scaled: FloatArray) -> FloatArray:
        """From scaled values (..., 6) back to prices, volume and amount."""
        bars = scaled * (self.std + np.float32(STD_EPSILON)) + self.mean
        return np.asarray(np.ldexp(bars, -self.exponent))


def _exponents(bars: FloatArray) -> NDArray[np.int32]:
    """The exponents of ``Scaling``, for lookbacks (..., T, 6).

    ``STD_EPSILON`` distorts a column that deviates by less than ``SMALL_DEVIATION``, unless that is only its
    rounding, and the squares of one beyond ``MAX_MAGNITUDE`` overflow. The power of two puts their range
    between 32,768 and 65,536. Then 8,192 bars deviate by at least 256, and adding ``STD_EPSILON`` changes no
    float32. As powers of two are exact, the scaled bars are the same at any size.
    """
    values = bars.astype(np.float64)
    low, high = values.min(axis=-2, keepdims=True), values.max(axis=-2, keepdims=True)
    magnitude, deviation = np.maximum(high, -low), values.std(axis=-2, keepdims=True)
    is_small = (deviation < SMALL_DEVIATION) & (deviation > magnitude * 2.0**-20)
    is_large = magnitude > MAX_MAGNITUDE
    extent = np.maximum(high - low, magnitude * 2.0**-24)  # a constant column has only its rounding
    return np.where(is_small | is_large, 16 - np.frexp(extent)[1], 0)


def time_features(wall: NDArray[np.datetime64]) -> NDArray[np.int64]:
    """Minute, hour, weekday (Monday 0), day and month of wall-clock times: (T,) → (T, 5)."""
    minutes = wall.astype("datetime64[m]").astype(np.int64)
    hours = minutes // 60
    days = hours // 24
    features = np.empty((len(wall), len(TIME_FEATURES)), dtype=np.int64)
    features[:, 0] = minutes - hours * 60
    features[:, 1] = hours - days * 24
    features[:, 2:] = _features_of_days().take(days % DAYS_OF_400_YEARS, axis=0)
    return features


@cache
def _features_of_days() -> NDArray[np.int8]:
    """Weekday, day and month of the 400 years from 1970 on, after which the calendar repeats."""
    days = np.arange(DAYS_OF_400_YEARS)
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    weekday = (days + 3) % 7  # 1970-01-01 was a Thursday
    day, month = (dates - months).astype(np.int64) + 1, months.astype(np.int64) % 12 + 1
    return np.stack([weekday, day, month], axis=-1).astype(np.int8)


def repair_bars(bars: FloatArray) -> FloatArray:
    """Bars (..., 6) as a market could print them.

    The high is raised to at least open and close, the low lowered to at most them; volume and amount below
    zero become zero. Open and close stay as they are.
    """
    repaired = bars.copy()
    opens, highs, lows, closes, *_ = repaired.reshape(-1, len(COLUMNS)).T
    np.maximum(highs, np.maximum(opens, closes), out=highs)
    np.minimum(lows, np.minimum(opens, closes), out=lows)
    np.maximum(repaired[..., VOLUME:], 0, out=repaired[..., VOLUME:])
    return repaired


def as_columns(bars: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """An array (..., 6) as one array per column."""
    return {name: bars[..., index] for index, name in enumerate(COLUMNS)}


@dataclass(frozen=True, eq=False)
class Instrument:
    """Bars of one instrument, ascending strictly in time.

    Attributes:
        bars: (N, 6) float32, columns as ``COLUMNS``, filled in as ``to_bars`` does.
        wall: the wall clock as written, the source of the time features, (N,) datetime64[s].
        instants: in UTC if offsets or zones are known, else the wall clock, (N,) datetime64[s]; for order and
            cuts only.
        is_aware: whether offsets or zones are known.
    """

    name: str
    bars: FloatArray
    wall: NDArray[np.datetime64]
    instants: NDArray[np.datetime64]
    is_aware: bool

    def __len__(self) -> int:
        return len(self.bars)
