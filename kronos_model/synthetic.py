"""Seeded candles that behave somewhat like a market, for the demo, tests and benchmarks. No torch.

They hold something to learn: volatility clusters (GARCH), volatility and volume follow a U over the session,
volume rises with the size of the move, and every third instrument reverts to its mean.
"""

from dataclasses import dataclass
from datetime import date
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.candles import COLUMNS, PRICE_COLUMNS

TICKS_PER_BAR: Final = 16
FIRST_DAY: Final = date(2025, 1, 6)

SESSIONS: Final = ((9 * 60 + 30, 11 * 60 + 30), (13 * 60, 15 * 60))
"""Minutes since midnight between which bars close, as on the Chinese exchanges."""

GARCH_OMEGA, GARCH_ALPHA, GARCH_BETA = 0.04, 0.10, 0.86
REVERSION_RATE: Final = 0.03


@dataclass(frozen=True)
class Candles:
    """One instrument's bars: ISO 8601 wall times, and columns as float64 arrays of equal length."""

    timestamps: tuple[str, ...]
    columns: dict[str, NDArray[np.float64]]

    def __len__(self) -> int:
        return len(self.timestamps)

    def __getitem__(self, rows: slice) -> "Candles":
        return Candles(self.timestamps[rows], {name: values[rows] for name, values in self.columns.items()})

    def as_dict(self) -> dict[str, list[str] | NDArray[np.float64]]:
        """Timestamps and columns in one mapping, as a DataFrame or a client takes them."""
        return {"timestamps": list(self.timestamps), **self.columns}


def session_minutes(spacing_minutes: int) -> NDArray[np.int64]:
    """Minutes since midnight at which the bars of one day close."""
    return np.concatenate(
        [np.arange(opens + spacing_minutes, closes + 1, spacing_minutes) for opens, closes in SESSIONS]
    )


def session_times(bars: int, spacing_minutes: int = 5) -> NDArray[np.datetime64]:
    """Closing times of ``bars`` bars in sessions from Monday to Friday, (bars,) datetime64[m]."""
    minutes = session_minutes(spacing_minutes)
    num_days = -(-bars // len(minutes))
    days = np.busday_offset(np.datetime64(FIRST_DAY), np.arange(num_days)).astype("datetime64[m]")
    times: NDArray[np.datetime64] = days[:, None] + minutes.astype("timedelta64[m]")[None, :]
    return times.ravel()[:bars]


def candles(seed: int = 0, bars: int = 512, *, spacing_minutes: int = 5, price: float = 50.0) -> Candles:
    """Bars of the instrument that ``seed`` names, always the same ones."""
    rng = np.random.default_rng(seed)
    times = session_times(bars, spacing_minutes)
    per_day = len(session_minutes(spacing_minutes))
    through_day = (np.arange(bars) % per_day) / max(per_day - 1, 1)
    season = 0.7 + 1.2 * (2 * through_day - 1) ** 2  # the U over the session

    reverts = seed % 3 == 0
    shocks = rng.standard_normal((bars, TICKS_PER_BAR)) / np.sqrt(TICKS_PER_BAR)
    bar_volatility = 0.0015 * np.exp(0.3 * rng.standard_normal())
    log_price, variance = 0.0, 1.0
    ticks = np.empty((bars, TICKS_PER_BAR + 1))
    intensity = np.empty(bars)
    for bar in range(bars):
        scale = bar_volatility * season[bar] * np.sqrt(variance)
        drift = -REVERSION_RATE * log_price if reverts else 0.0
        ticks[bar, 0] = log_price
        ticks[bar, 1:] = log_price + np.cumsum(shocks[bar] * scale + drift / TICKS_PER_BAR)
        log_price = ticks[bar, -1]
        shock = shocks[bar].sum()
        intensity[bar] = season[bar] * (0.5 + np.sqrt(variance) * abs(shock))
        variance = GARCH_OMEGA + GARCH_ALPHA * variance * shock**2 + GARCH_BETA * variance

    prices = price * np.exp(ticks)
    volume = np.round(400 * intensity * np.exp(0.25 * rng.standard_normal(bars))) + 1
    columns = dict(
        zip(PRICE_COLUMNS, (prices[:, 0], prices.max(1), prices.min(1), prices[:, -1]), strict=True)
    )
    columns = {name: np.round(values, 4) for name, values in columns.items()}
    columns["volume"] = volume
    columns["amount"] = np.round(volume * prices.mean(1), 2)
    texts = tuple(np.datetime_as_string(times.astype("datetime64[s]")).tolist())
    return Candles(texts, {name: columns[name] for name in COLUMNS})
