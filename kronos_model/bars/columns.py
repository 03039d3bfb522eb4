"""Candles as arrays: column order, filling of missing columns, scaling, time features, output repair.

Arrays of bars are ``(..., T, 6)`` in the order of ``COLUMNS``. No torch here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronos_model.errors import CandleError

PRICE_COLUMNS: Final = ("open", "high", "low", "close")
COLUMNS: Final = (*PRICE_COLUMNS, "volume", "amount")
OPEN, HIGH, LOW, CLOSE, VOLUME, AMOUNT = range(len(COLUMNS))

TIME_COLUMNS: Final = ("timestamps", "timestamp", "datetime", "date", "time")
"""Titles of time columns in files, the likeliest first."""

TIME_FEATURES: Final = ("minute", "hour", "weekday", "day", "month")

STD_EPSILON: Final = 1e-5
"""Added to each column's standard deviation, so that a constant column scales to zero."""

FloatArray = NDArray[np.float32]


def check_price_columns(columns: Mapping[str, Any]) -> None:
    """Raise CandleError (MISSING_COLUMN) if a price column is missing."""
    for name in PRICE_COLUMNS:
        if name not in columns:
            raise column_error("MISSING_COLUMN", name, f" is missing; needed are {', '.join(PRICE_COLUMNS)}")


def column_error(code: str, name: str, text: str, **details: int) -> CandleError:
    """An error about a column; ``text`` follows its name."""
    return CandleError(f"column {name!r}{text}", code=code, field=name, details=details)


def to_bars(columns: Mapping[str, ArrayLike]) -> FloatArray:
    """The six columns as one (T, 6) float32 array, with volume and amount filled in if they are missing.

    A missing volume becomes 0. A missing amount becomes ``volume · mean(open, high, low, close)``, so 0
    without a volume. A given amount is kept even if the volume is missing.

    Raises CandleError (MISSING_COLUMN) if a price column is missing.
    """
    check_price_columns(columns)
    prices = [np.asarray(columns[name], dtype=np.float64) for name in PRICE_COLUMNS]
    volume = np.asarray(columns.get("volume", np.zeros_like(prices[0])), dtype=np.float64)
    amount = np.asarray(columns.get("amount", volume * np.mean(prices, axis=0)), dtype=np.float64)
    return np.stack([*prices, volume, amount], axis=-1).astype(np.float32)  # (T, 6)


@dataclass(frozen=True)
class Scaling:
    """A lookback's own mean and standard deviation (population) per column, each (6,) float32."""

    mean: FloatArray
    std: FloatArray

    @classmethod
    def fit(cls, bars: FloatArray) -> "Scaling":
        """Scaling from all given bars (T, 6), not only from those that fit the context."""
        by_column = np.asfortranarray(bars)  # contiguous columns sum pairwise: long float32 sums stay exact
        return cls(by_column.mean(axis=0), by_column.std(axis=0))

    def apply(self, bars: FloatArray, clip: float) -> FloatArray:
        """Scaled bars, clipped to ±clip."""
        return np.clip((bars - self.mean) / (self.std + np.float32(STD_EPSILON)), -clip, clip)

    def undo(self, scaled: FloatArray) -> FloatArray:
        """From scaled values (..., 6) back to prices, volume and amount."""
        return np.asarray(scaled * (self.std + np.float32(STD_EPSILON)) + self.mean)


def time_features(wall: NDArray[np.datetime64]) -> NDArray[np.int64]:
    """Minute, hour, weekday (Monday 0), day and month of wall-clock times: (T,) → (T, 5)."""
    minutes = wall.astype("datetime64[m]")
    days = minutes.astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    since_midnight = (minutes - days).astype(np.int64)
    weekday = (days.astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday
    day = (days - months).astype(np.int64) + 1
    month = months.astype(np.int64) % 12 + 1
    return np.stack([since_midnight % 60, since_midnight // 60, weekday, day, month], axis=-1)


def repair_bars(bars: FloatArray) -> FloatArray:
    """Bars (..., 6) as a market could print them.

    The high is raised to at least open and close, the low lowered to at most them; volume and amount below
    zero become zero. Open and close stay as they are.
    """
    repaired = bars.copy()
    body = bars[..., [OPEN, CLOSE]]
    repaired[..., HIGH] = np.maximum(bars[..., HIGH], body.max(axis=-1))
    repaired[..., LOW] = np.minimum(bars[..., LOW], body.min(axis=-1))
    repaired[..., [VOLUME, AMOUNT]] = np.maximum(bars[..., [VOLUME, AMOUNT]], 0)
    return repaired


def as_columns(bars: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """An array (..., 6) as one array per column."""
    return {name: bars[..., index] for index, name in enumerate(COLUMNS)}
