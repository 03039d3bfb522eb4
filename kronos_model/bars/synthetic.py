"""Seeded candles that behave somewhat like a market, for the demo, tests and benchmarks. No torch.

They contain patterns to learn. Volatility clusters (GARCH). Volatility and volume follow a U over the
session. Volume rises with volatility and with the size of the move. Instruments with an even seed revert to
their mean: a move loses half of its size in 17 bars. The others are a random walk. Other features of real
markets are missing: overnight gaps, trends, jumps, news, and instruments that move together.
"""

from dataclasses import dataclass
from datetime import date
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS

TICKS_PER_BAR: Final = 16
SPACING_MINUTES: Final = 5
FIRST_DAY: Final = date(2025, 1, 6)
FIRST_PRICE: Final = 50.0

SESSIONS: Final = ((9 * 60 + 30, 11 * 60 + 30), (13 * 60, 15 * 60))
"""Minutes since midnight between which bars close, as on the Chinese exchanges."""

SEASON_LOW, SEASON_HIGH = 0.6, 1.8
"""Volatility at midday and at both ends of the session, times an instrument's own."""

GARCH_OMEGA, GARCH_ALPHA, GARCH_BETA = 0.02, 0.10, 0.88
"""Parameters with a mean variance of 1; a burst of it loses half of its size in 34 bars."""

REVERSION_RATE: Final = 0.04
"""Share of the way back to the mean that a reverting instrument moves in a bar, plus noise."""


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


def session_times(bars: int, spacing_minutes: int = SPACING_MINUTES) -> NDArray[np.datetime64]:
    """Closing times of ``bars`` bars in sessions from Monday to Friday, (bars,) datetime64[m]."""
    minutes = session_minutes(spacing_minutes)
    num_days = -(-bars // len(minutes))
    days = np.busday_offset(np.datetime64(FIRST_DAY), np.arange(num_days)).astype("datetime64[m]")
    return np.ravel(days[:, None] + minutes.astype("timedelta64[m]"))[:bars]


def reverts_to_mean(seed: int) -> bool:
    """Whether the instrument of this seed reverts to its mean."""
    return seed % 2 == 0


def candles(seed: int = 0, bars: int = 512) -> Candles:
    """Bars of the instrument of this seed, always the same. A longer series begins with the shorter one."""
    rng = np.random.default_rng(seed)
    bar_volatility = 0.0015 * np.exp(0.3 * rng.standard_normal())
    noise = rng.standard_normal((bars, TICKS_PER_BAR + 1))  # a row a bar: a longer series starts alike
    shocks, volume_noise = noise[:, :-1] / np.sqrt(TICKS_PER_BAR), noise[:, -1]

    times = session_times(bars)
    per_day = len(session_minutes(SPACING_MINUTES))
    through_day = (np.arange(bars) % per_day) / max(per_day - 1, 1)
    season = SEASON_LOW + (SEASON_HIGH - SEASON_LOW) * (2 * through_day - 1) ** 2

    shock = shocks.sum(axis=1)  # (bars,)
    volatility = _clustered_volatility(shock)
    scale = bar_volatility * season * volatility
    rate = REVERSION_RATE if reverts_to_mean(seed) else 0.0
    opens = _levels(shock * scale, rate)  # (bars,)
    pull = -rate * opens[:, None] * (np.arange(1, TICKS_PER_BAR + 1) / TICKS_PER_BAR)
    moves = np.cumsum(shocks, axis=1) * scale[:, None] + pull  # (bars, TICKS_PER_BAR)
    prices = FIRST_PRICE * np.exp(opens[:, None] + np.pad(moves, ((0, 0), (1, 0))))

    volume = np.round(600 * season * volatility * (0.4 + np.abs(shock)) * np.exp(0.25 * volume_noise)) + 1
    ohlc = np.round([prices[:, 0], prices.max(1), prices.min(1), prices[:, -1]], 4)
    columns = dict(zip(COLUMNS, (*ohlc, volume, np.round(volume * prices.mean(1), 2)), strict=True))
    return Candles(tuple(np.datetime_as_string(times.astype("datetime64[s]")).tolist()), columns)


def _clustered_volatility(shock: NDArray[np.float64]) -> NDArray[np.float64]:
    """The standard deviation that GARCH gives each bar, from the shocks before it, (bars,)."""
    variance, variances = 1.0, []
    for squared in (shock**2).tolist():  # plain floats: ten times as fast as one array element at a time
        variances.append(variance)
        variance = GARCH_OMEGA + variance * (GARCH_ALPHA * squared + GARCH_BETA)
    return np.sqrt(variances)


def _levels(moves: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """Logarithmic opening prices, starting at 0; each bar takes back the share ``rate`` of it, (bars,)."""
    level, levels = 0.0, []
    for move in moves.tolist():
        levels.append(level)
        level += move - rate * level
    return np.array(levels)
