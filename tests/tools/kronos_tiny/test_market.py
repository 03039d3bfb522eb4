"""The markets that the bundled checkpoint is trained on."""

import numpy as np
import pytest

from kronos_model.bars.columns import to_bars
from kronos_model.bars.synthetic import Candles
from tools.kronos_tiny.market import market_candles

NUM_BARS = 600


@pytest.fixture(scope="module")
def instruments() -> list[Candles]:
    return [market_candles(seed, NUM_BARS) for seed in range(60)]


def changes(candles: Candles) -> np.ndarray:
    return np.diff(np.log(candles.columns["close"]))


def test_every_bar_is_possible_and_later_than_the_one_before(instruments: list[Candles]) -> None:
    for candles in instruments:
        bars = to_bars(candles.columns)
        opens, high, low, close, volume, amount = bars.T
        assert bars.shape == (NUM_BARS, 6)
        assert np.isfinite(bars).all()
        assert (high >= np.maximum(opens, close)).all()
        assert (low <= np.minimum(opens, close)).all()
        assert (low > 0).all()
        assert (volume >= 0).all()
        assert (amount >= 0).all()
        assert (np.diff(np.array(candles.timestamps, dtype="datetime64[s]")) > np.timedelta64(0)).all()


def test_the_same_seed_is_the_same_instrument() -> None:
    once, again, other = (market_candles(seed, 50) for seed in (3, 3, 4))
    assert once.timestamps == again.timestamps
    assert all(np.array_equal(once.columns[name], again.columns[name]) for name in once.columns)
    assert not np.array_equal(once.columns["close"], other.columns["close"])


def test_there_are_markets_of_many_kinds(instruments: list[Candles]) -> None:
    walls = [np.array(candles.timestamps, dtype="datetime64[m]") for candles in instruments]
    assert {1, 5, 60, 1440, 7 * 1440} <= {int(np.median(np.diff(wall).astype(int))) for wall in walls}
    prices = np.array([np.median(candles.columns["close"]) for candles in instruments])
    assert prices.min() < 0.01
    assert prices.max() > 10_000
    without_volume = [not candles.columns["volume"].any() for candles in instruments]
    some_zeros = [(candles.columns["volume"] == 0).mean() for candles in instruments]
    assert 0 < sum(without_volume) < 20
    assert any(0 < share < 1 for share in some_zeros)


def test_changes_have_heavy_tails_and_clusters(instruments: list[Candles]) -> None:
    kurtosis, clustering = [], []
    for candles in instruments:
        change = changes(candles) - changes(candles).mean()
        kurtosis.append((change**4).mean() / change.var() ** 2)
        size = np.abs(change) - np.abs(change).mean()
        clustering.append((size[1:] * size[:-1]).mean() / size.var())
    assert np.median(kurtosis) > 5  # 3 for normal changes
    assert np.median(clustering) > 0.05  # 0 without clusters
