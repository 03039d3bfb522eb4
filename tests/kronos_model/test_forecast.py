"""What a forecast says: mean, quantiles, statistics, and events with their grammar."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kronos_model.bars.columns import CLOSE, HIGH, LOW
from kronos_model.forecast import (
    Event,
    Forecast,
    max_drawdown,
    path_quantiles,
    realised_volatility,
    standard_error,
    total_return,
    wilson_interval,
)

LAST = 100.0


def paths() -> np.ndarray:
    """Two paths of three bars."""
    bars = np.full((2, 3, 6), LAST, dtype=np.float32)
    bars[:, :, CLOSE] = [[101, 99, 103], [98, 100, 97]]
    bars[:, :, HIGH] = [[102, 101, 104], [100, 100, 99]]
    bars[:, :, LOW] = [[99, 98, 102], [95, 97, 96]]
    return bars


@pytest.mark.parametrize(
    ("text", "happens"),
    [
        ("close>last at 1", [True, False]),
        ("close>last at end", [True, False]),
        ("close>=last at 2", [False, True]),
        ("close > last at 2", [False, False]),
        ("close<99.5 at 2", [True, False]),
        ("close>last+2% at 3", [True, False]),
        ("close<last - 2.5% at end", [False, True]),
        ("high>=102 by 1", [True, False]),
        ("high>=104 by 2", [False, False]),
        ("high>=104 by end", [True, False]),
        ("low<=last-5% by end", [False, True]),
        ("close>100 by 3", [True, False]),
    ],
)
def test_an_event_happens_in_the_paths_that_reach_its_level(text: str, happens: list[bool]) -> None:
    event = Event.parse(f" {text} ")

    assert event.text == text
    assert event.happens(paths(), LAST).tolist() == happens


@pytest.mark.parametrize(
    "text",
    [
        "", "close>last", "close>last at 0", "close>last at -1", "close>last at", "close=1 at 2",
        "last>1 at 2",
        "volume>1 at 2", "close>last+2 at 2",  "close>+2% at 2", "close>-5 at 2", "close>1e3 at 2",
        "close>nan at 2", "close>last before 2", "close>last at 2 at 3", "close>١ at 2", "CLOSE>1 at 2",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="close>last at 24"):
        Event.parse(text)


@pytest.mark.parametrize(("num_hits", "num_paths"), [(0, 30), (30, 30), (19, 30), (1, 1), (1, 1000)])
def test_an_interval_ends_where_the_share_is_196_standard_errors_away(num_hits: int, num_paths: int) -> None:
    share, (low, high) = num_hits / num_paths, wilson_interval(num_hits, num_paths)

    assert (low, high)[num_hits == num_paths] == share or 0 < num_hits < num_paths
    for end in {low, high} - {share}:
        assert abs(share - end) == pytest.approx(1.959964 * (end * (1 - end) / num_paths) ** 0.5)


def test_a_share_of_none_or_all_has_no_standard_error() -> None:
    assert standard_error(25, 100) == pytest.approx(0.0433, abs=1e-4)
    assert standard_error(0, 100) is standard_error(100, 100) is None


def paths_of(*closes: list[float]) -> np.ndarray:
    bars = np.ones((len(closes), len(closes[0]), 6), dtype=np.float32)
    bars[:, :, CLOSE] = closes
    return bars


def test_the_statistics_count_from_the_last_known_close() -> None:
    some = paths_of([110, 99, 120], [90, 95, 80], [101, 102, 103])

    assert total_return(some, LAST) == pytest.approx([0.2, -0.2, 0.03])
    assert max_drawdown(some, LAST) == pytest.approx([0.1, 0.2, 0.0])
    squares = np.log([1.1, 0.9, 120 / 99]) ** 2
    assert realised_volatility(some, LAST)[0] == pytest.approx(np.sqrt(squares.sum()))


def test_a_path_at_zero_or_below_has_no_volatility() -> None:
    some = paths_of([110, 0, 10], [10, -5, 10], [100, 100, 100])

    assert np.isnan(realised_volatility(some, LAST)).tolist() == [True, True, False]
    assert realised_volatility(some, LAST)[2] == 0
    assert max_drawdown(some, LAST) == pytest.approx([1.0, 1.05, 0.0])


def test_paths_are_repaired_before_they_are_summarised():
    # One path closes above its high; the mean of the repaired paths is not the repaired mean.
    paths = np.array([[[1, 1, 1, 3, 0, 0]], [[3, 4, 3, 3, 0, 0]]], dtype=np.float32)
    repaired = Forecast(paths, seed=0).repaired()
    assert repaired.mean[0, 1] == pytest.approx((3 + 4) / 2)
    assert repaired.quantiles([1.0])[0, 0, 1] == 4


def test_quantiles_and_mean_are_taken_over_the_paths():
    paths = np.arange(11, dtype=np.float32)[:, None, None].repeat(6, axis=2)
    forecast = Forecast(paths, seed=0)
    assert forecast.mean.shape == (1, 6)
    assert forecast.mean[0, 0] == 5
    assert forecast.quantiles([0.1, 0.5, 0.9])[:, 0, 3].tolist() == pytest.approx([0.2, 5, 9.8])
    assert forecast.quantiles([0.01, 0.99])[:, 0, 3].tolist() == [0, 10]


@pytest.mark.parametrize("num_paths", [9, 30])
def test_an_interval_holds_one_more_path_as_often_as_its_levels_say(num_paths):
    draws = np.random.default_rng(0).normal(size=(num_paths + 1, 50_000, 6)).astype(np.float32)
    low, high = Forecast(draws[1:], seed=0).quantiles([0.1, 0.9])
    assert ((low <= draws[0]) & (draws[0] <= high)).mean() == pytest.approx(0.8, abs=0.005)


@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(2, 40), st.just(3)), elements=st.floats(-1e6, 1e6, width=32)
    ),
    st.lists(st.floats(0.001, 0.999), max_size=4),
)
def test_quantiles_are_those_of_numpy(paths, levels):
    expected = np.quantile(paths, levels, axis=0, method="weibull")
    np.testing.assert_array_equal(path_quantiles(paths, levels), expected)


def test_every_quantile_of_one_path_is_that_path():
    path = np.random.default_rng(1).normal(size=(1, 4, 6)).astype(np.float32)
    quantiles = Forecast(path, seed=1).quantiles([0.1, 0.9])
    assert quantiles.dtype == np.float64
    np.testing.assert_array_equal(quantiles, np.quantile(path.astype(np.float64), [0.1, 0.9], axis=0))
