"""Candles of many kinds of markets, to train and test the bundled checkpoint. No torch.

Each seed is one instrument. Its kind is drawn, then its bars: sessions, spacings from one minute to a week,
volatility that clusters on several scales and follows the hour, heavy tails, jumps, gaps over nights, prices
from 0.001 to 100,000 on ticks, bars without trades, markets without volume. These are the known properties of
returns (Cont, Empirical properties of asset returns, Quantitative Finance 1, 2001), with sizes drawn widely.
None is fitted to a file.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.synthetic import Candles

Array = NDArray[np.float64]

STEPS_PER_BAR: Final = 16

ROUND_THE_CLOCK: Final = ((0, 1440),)
SESSIONS: Final = (  # minutes since midnight, and the weight of the market
    (((570, 690), (780, 900)), 3),  # Shanghai
    (((570, 960),), 3),  # New York
    (((540, 1050),), 2),  # London, Frankfurt
    (((540, 690), (750, 900)), 1),  # Tokyo
    (ROUND_THE_CLOCK, 4),  # currencies, without weekends
    (ROUND_THE_CLOCK, 2),  # crypto-currencies, every day
)
EVERY_DAY: Final = 5
"""The index of the market that is open on weekends."""
SPACINGS: Final = (1, 5, 15, 30, 60)
DAILY_SHARE, WEEKLY_SHARE = 0.35, 0.05


def market_candles(seed: int, bars: int) -> Candles:
    """Bars of the instrument of this seed, always the same for the same number of them."""
    rng = np.random.default_rng([seed, 0x6D61726B])
    times, is_first, per_day, through_day = _calendar(rng, bars)
    is_round_the_clock = per_day > 1 and not is_first.any()

    volatility = _volatility(rng, bars) * _season(rng, through_day, per_day, is_round_the_clock)
    moves, gaps = _moves(rng, volatility, is_first, per_day)
    log_price = np.cumsum(gaps + moves.sum(axis=1))
    opens = log_price - moves.sum(axis=1)  # (bars,)
    if rng.random() < 0.1:
        # What a pull to the mean has taken from the level.
        changes = np.diff(log_price, prepend=0.0)
        opens = opens - (np.cumsum(changes) - _faded(changes, 1 - rng.uniform(0.005, 0.05)))
    path = opens[:, None] + np.pad(np.cumsum(moves, axis=1), ((0, 0), (1, 0)))  # (bars, STEPS_PER_BAR + 1)
    if rng.random() < 0.3:  # trades at bid and ask
        path += rng.uniform(0.05, 0.4) * np.median(volatility) * rng.choice([-0.5, 0.5], path.shape)

    bar_size = 10 ** rng.uniform(-3.7, -1.8)  # the usual logarithmic change over one bar
    price = 10 ** rng.uniform(-3, 5)
    tick = 10.0 ** np.round(np.log10(price * bar_size * 10 ** rng.uniform(-3, 0.2)))
    prices = np.maximum(np.round(price * np.exp(bar_size * path) / tick), 1) * tick
    activity = _activity(rng, volatility, moves)
    if rng.random() < 0.12:  # bars without trades
        _still(prices, activity, rng.random(bars) < rng.uniform(0.01, 0.4))
    volume = np.round(activity * 10 ** rng.uniform(1.5, 6)) * (rng.random() >= 0.15)
    columns = (prices[:, 0], prices.max(1), prices.min(1), prices[:, -1], volume, volume * prices.mean(1))
    return Candles(tuple(np.datetime_as_string(times).tolist()), dict(zip(COLUMNS, columns, strict=True)))


def _calendar(
    rng: np.random.Generator, bars: int
) -> tuple[NDArray[np.datetime64], NDArray[np.bool_], int, Array]:
    """Times of the bars; whether a gap comes before each; bars a day; place in the day from 0 to 1."""
    first_day = np.datetime64("1990-01-01") + rng.integers(12_000)
    draw = rng.random()
    if draw < WEEKLY_SHARE:
        days = first_day + 7 * np.arange(bars)
        return days.astype("datetime64[s]"), np.ones(bars, bool), 1, np.zeros(bars)
    weights = np.array([weight for _, weight in SESSIONS], dtype=float)
    kind = int(rng.choice(len(SESSIONS), p=weights / weights.sum()))
    if draw < WEEKLY_SHARE + DAILY_SHARE:
        minutes = np.zeros(1, dtype=int)
    else:
        spacing, at_end = int(rng.choice(SPACINGS)), rng.random() < 0.5
        sessions = SESSIONS[kind][0]
        minutes = np.concatenate([np.arange(*session, spacing) for session in sessions]) + spacing * at_end
    per_day = len(minutes)
    first_bar = int(rng.integers(per_day))
    num_days = bars // per_day + 2
    if kind == EVERY_DAY:
        days = first_day + np.arange(num_days)
    else:
        is_open = rng.random(2 * num_days + 20) > 0.03  # holidays
        days = np.busday_offset(first_day, np.arange(len(is_open)), roll="forward")[is_open][:num_days]
    is_elsewhere = per_day > 1 and rng.random() < 0.3
    shift = int(rng.integers(24)) * 60 if is_elsewhere else 0  # the clock of another zone
    times = np.ravel(days.astype("datetime64[m]")[:, None] + (minutes + shift).astype("timedelta64[m]"))
    place = np.arange(first_bar, first_bar + bars) % per_day
    has_gaps = per_day == 1 or SESSIONS[kind][0] != ROUND_THE_CLOCK
    times = times[first_bar : first_bar + bars].astype("datetime64[s]")
    return times, (place == 0) & has_gaps, per_day, place / max(per_day - 1, 1)


def _volatility(rng: np.random.Generator, bars: int) -> Array:
    """A volatility around 1: bursts that last 3 to 1000 bars, and news that fades."""
    logarithm = np.zeros(bars)
    for shortest, longest, most in ((3, 12, 0.3), (15, 80, 0.45), (100, 1000, 0.5)):
        decay = 0.5 ** (1 / np.exp(rng.uniform(np.log(shortest), np.log(longest))))
        size = rng.uniform(0.02, most)
        logarithm += size * _faded(rng.standard_normal(bars) * np.sqrt(1 - decay**2), decay)
    news = (rng.random(bars) < 10 ** rng.uniform(-4, -2.3)) * rng.exponential(0.8, bars)
    volatility: Array = np.exp(logarithm + _faded(news, 0.5 ** (1 / rng.uniform(3, 40))))
    return volatility


def _season(rng: np.random.Generator, through_day: Array, per_day: int, is_round_the_clock: bool) -> Array:
    """Volatility over the day around 1: a U in a session, a hump or two round the clock."""
    if per_day == 1:
        return np.ones_like(through_day)
    depth, logarithm = rng.uniform(0.1, 1.2), np.zeros_like(through_day)
    if is_round_the_clock:
        humps = np.cos(2 * np.pi * (through_day - rng.random()))
        logarithm += 0.5 * depth * (humps + 0.4 * np.cos(4 * np.pi * (through_day - rng.random())))
    else:
        bent = (2 * through_day - rng.uniform(0.9, 1.3)) ** 2
        logarithm += depth * (bent - bent.mean())
    return np.exp(logarithm)


def _moves(
    rng: np.random.Generator, volatility: Array, is_first: NDArray[np.bool_], per_day: int
) -> tuple[Array, Array]:
    """Logarithmic changes inside each bar, (bars, STEPS_PER_BAR), and before it, (bars,)."""
    bars = len(volatility)
    freedom = rng.uniform(3.5, 15)  # of Student's t, as a mixture of normal bars
    mixture = np.sqrt((freedom - 2) / rng.chisquare(freedom, bars))
    per_step = (volatility * mixture / np.sqrt(STEPS_PER_BAR))[:, None]
    moves = rng.standard_normal((bars, STEPS_PER_BAR)) * per_step
    moves += rng.normal(0, 0.03) / np.sqrt(per_day) / STEPS_PER_BAR  # a trend
    jumps = (rng.random(bars) < 10 ** rng.uniform(-4, -2.3)) * rng.normal(0, 4, bars) * volatility
    moves[np.arange(bars), rng.integers(STEPS_PER_BAR, size=bars)] += jumps
    share = rng.uniform(0.2, 0.7) if per_day == 1 else rng.uniform(0.2, 0.8) * np.sqrt(per_day)
    tails = rng.standard_t(4, bars) / np.sqrt(2)
    gaps = is_first * share * tails * (volatility if per_day == 1 else np.median(volatility))
    if per_day == 1:  # a part of the day's change
        moves *= np.sqrt(1 - share**2)
    lag = rng.normal(0, 0.04)
    moves[1:] += lag * moves[:-1].sum(axis=1, keepdims=True) / STEPS_PER_BAR
    return moves, gaps


def _activity(rng: np.random.Generator, volatility: Array, moves: Array) -> Array:
    """Volume around 1: it grows with the volatility and the bar's own move, and has bursts of its own."""
    bars = len(volatility)
    decay = 0.5 ** (1 / np.exp(rng.uniform(np.log(5), np.log(300))))
    slow = rng.uniform(0.1, 0.6) * _faded(rng.standard_normal(bars) * np.sqrt(1 - decay**2), decay)
    own = rng.uniform(0.15, 0.7) * rng.standard_normal(bars)
    move = np.abs(moves.sum(axis=1)) / volatility
    activity: Array = volatility ** rng.uniform(0.3, 1.3) * (0.5 + rng.uniform(0.2, 1) * move)
    return activity * np.exp(slow + own)


def _still(prices: Array, activity: Array, is_still: NDArray[np.bool_]) -> None:
    """Keep the last close and trade nothing in these bars, in place."""
    is_still[0] = False
    last_traded = np.maximum.accumulate(np.where(is_still, 0, np.arange(len(prices))))
    prices[is_still] = prices[last_traded[is_still], -1:]
    activity[is_still] = 0


def _faded(impulses: Array, decay: float) -> Array:
    """Each value plus ``decay`` times the one before it."""
    level, levels = 0.0, []
    for impulse in impulses.tolist():  # plain floats: ten times as fast as one array element at a time
        level = impulse + decay * level
        levels.append(level)
    return np.array(levels)
