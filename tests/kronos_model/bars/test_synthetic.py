import numpy as np
import pytest
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS, check_candles
from kronos_model.bars.synthetic import Candles, candles, reverts_to_mean, session_minutes

SEEDS = range(24)
BARS = 4000
BARS_PER_DAY = len(session_minutes(5))


@pytest.fixture(scope="module")
def market() -> list[Candles]:
    return [candles(seed, BARS) for seed in SEEDS]


def log_changes(instrument: Candles, lag: int = 1) -> NDArray[np.float64]:
    closes = np.log(instrument.columns["close"])
    return closes[lag:] - closes[:-lag]


def of_day(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values of all bars by day, (days, bars per day)."""
    whole = len(values) // BARS_PER_DAY * BARS_PER_DAY
    return values[:whole].reshape(-1, BARS_PER_DAY)


def test_a_seed_gives_one_instrument_of_any_length() -> None:
    once, longer, other = candles(3, 200), candles(3, 300)[:200], candles(4, 200)
    assert once.timestamps == longer.timestamps
    for name in COLUMNS:
        assert np.array_equal(once.columns[name], longer.columns[name])
    assert not np.array_equal(once.columns["close"], other.columns["close"])


@pytest.mark.parametrize("seed", [0, 1])
def test_long_series_are_possible_candles(seed: int) -> None:
    columns = candles(seed, 15_000).columns
    check_candles(columns)
    assert np.all(columns["low"] > 0)
    assert np.all(columns["high"] >= np.maximum(columns["open"], columns["close"]))
    assert np.all(columns["low"] <= np.minimum(columns["open"], columns["close"]))
    assert np.all(columns["volume"] >= 1)


def test_volatility_clusters(market: list[Candles]) -> None:
    def autocorrelation(day_means: NDArray[np.float64]) -> float:
        return float(np.corrcoef(day_means[:-1], day_means[1:])[0, 1])

    # Of whole days, so that the U over the session has no part in it.
    days = [of_day(np.abs(log_changes(instrument))).mean(axis=1) for instrument in market]
    shuffled = [np.random.default_rng(0).permutation(day) for day in days]
    assert np.mean([autocorrelation(day) for day in days]) > 0.2
    assert abs(np.mean([autocorrelation(day) for day in shuffled])) < 0.1


@pytest.mark.parametrize("column", ["volume", "change"])
def test_volume_and_volatility_follow_a_u_over_the_session(market: list[Candles], column: str) -> None:
    profiles = []
    for instrument in market:
        values = instrument.columns["volume"][1:] if column == "volume" else np.abs(log_changes(instrument))
        by_bar = of_day(np.r_[np.nan, values])  # the first bar has no change
        profile = np.nanmean(by_bar, axis=0)
        profiles.append(profile / profile.mean())
    profile = np.mean(profiles, axis=0)
    midday = profile[BARS_PER_DAY // 2 - 4 : BARS_PER_DAY // 2 + 4].mean()
    for end in (profile[:4], profile[-4:]):
        assert end.mean() > 2 * midday


def test_volume_rises_with_the_size_of_the_move(market: list[Candles]) -> None:
    for instrument in market:
        assert np.corrcoef(np.abs(log_changes(instrument)), instrument.columns["volume"][1:])[0, 1] > 0.6


def test_instruments_with_even_seeds_revert_to_their_mean(market: list[Candles]) -> None:
    # A random walk's changes over a day vary as its changes over a bar do, times the bars.
    ratios = {
        seed: float(
            np.var(log_changes(instrument, BARS_PER_DAY)) / BARS_PER_DAY / np.var(log_changes(instrument))
        )
        for seed, instrument in zip(SEEDS, market, strict=True)
    }
    reverting = [ratio for seed, ratio in ratios.items() if reverts_to_mean(seed)]
    others = [ratio for seed, ratio in ratios.items() if not reverts_to_mean(seed)]
    assert len(reverting) == len(others)
    assert max(reverting) < 0.6 < min(others)
    assert np.mean(others) == pytest.approx(1, abs=0.15)
