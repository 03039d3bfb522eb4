"""Columns of any size are scaled alike; those of ordinary size as the reference implementation does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kronos_model.bars.columns import (
    COLUMNS,
    MAX_MAGNITUDE,
    SMALL_DEVIATION,
    VOLUME,
    FloatArray,
    Scaling,
    to_bars,
)

CLIP = 5
EPSILON = np.float32(1e-5)
DRAWN = np.random.default_rng(0).normal(size=(3, 8, len(COLUMNS))).astype(np.float32)


@st.composite
def lookbacks(draw: st.DrawFn, deviation: st.SearchStrategy[float]) -> FloatArray:
    """Six columns of T bars, each of a deviation of its own; its values may be 100,000 times as large."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_bars = draw(st.integers(2, 200))
    bars = rng.normal(size=(num_bars, len(COLUMNS)))
    bars /= bars.std(axis=0)
    columns = len(COLUMNS)
    sizes = draw(st.lists(deviation, min_size=columns, max_size=columns))
    levels = draw(st.lists(st.floats(-5, 5), min_size=columns, max_size=columns))
    return np.asarray((bars + 10.0 ** np.array(levels)) * sizes, dtype=np.float32)


def deviations(bars: FloatArray) -> NDArray[np.float64]:
    return bars.std(axis=0, dtype=np.float64)


def reference(bars: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Each column scaled, and the drawn bars undone, by the reference implementation's formulas."""
    columns = np.asfortranarray(bars)
    mean, std = columns.mean(axis=0), columns.std(axis=0)
    return np.clip((bars - mean) / (std + EPSILON), -CLIP, CLIP), DRAWN * (std + EPSILON) + mean


def assert_as_reference(bars: FloatArray) -> None:
    scaling = Scaling.fit(bars)
    expected, undone = reference(bars)
    np.testing.assert_array_equal(scaling.apply(bars, CLIP), expected)
    np.testing.assert_array_equal(scaling.undo(DRAWN), undone)


@given(lookbacks(st.floats(1e-20, 9e-5)), st.integers(1, 40))
def test_columns_below_the_limit_that_differ_by_a_power_of_two_are_scaled_alike(
    bars: FloatArray, halvings: int
) -> None:
    smaller = np.ldexp(bars, -halvings)
    one, other = Scaling.fit(bars), Scaling.fit(smaller)
    np.testing.assert_array_equal(one.apply(bars, CLIP), other.apply(smaller, CLIP))
    np.testing.assert_array_equal(np.ldexp(one.undo(DRAWN), -halvings), other.undo(DRAWN))


@given(lookbacks(st.floats(1e-20, 9e-5)))
def test_columns_below_the_limit_have_their_whole_deviation(bars: FloatArray) -> None:
    scaling = Scaling.fit(bars)
    extent = np.ptp(np.ldexp(bars, scaling.exponent).astype(np.float64), axis=0)
    assert ((extent >= 2**15) & (extent < 2**16)).all()
    np.testing.assert_array_equal(scaling.std + EPSILON, scaling.std)


@given(lookbacks(st.floats(1.1e-4, 1e11)))
def test_columns_above_the_limit_are_the_references(bars: FloatArray) -> None:
    assert_as_reference(bars)


@given(st.integers(-3, 3), st.integers(2, 400), st.floats(0, 100))
def test_float64_decides_which_columns_are_below_the_limit(steps: int, half: int, level: float) -> None:
    """The two values of a column are a few float32 steps from those with the limit as deviation."""
    value = np.float32(SMALL_DEVIATION)
    for _ in range(abs(steps)):
        value = np.nextafter(value, np.float32(np.inf if steps > 0 else 0))
    bars = np.repeat([[np.float32(level)], [np.float32(level) + 2 * value]], half, axis=0)
    bars = np.repeat(bars, len(COLUMNS), axis=1)
    is_below = deviations(bars) < SMALL_DEVIATION
    assert ((Scaling.fit(bars).exponent[0] != 0) == is_below).all()
    if not is_below.any():
        assert_as_reference(bars)


@pytest.mark.parametrize("value", [0, 1e-45, 1e-40, 1e-6, 1, 1e17])
def test_constant_columns_and_rounding_are_the_references(value: float) -> None:
    bars = np.full((300, len(COLUMNS)), value, dtype=np.float32)
    assert_as_reference(bars)
    bars[::7] = np.nextafter(bars[::7], np.float32(np.inf))
    if np.float32(value) >= np.finfo(np.float32).tiny:  # below that, one step is much of the value
        assert_as_reference(bars)


@given(lookbacks(st.floats(1e-20, 9e-5)), lookbacks(st.floats(1.1e-4, 1e11)), st.sets(st.integers(0, 5)))
def test_each_column_is_scaled_by_itself(small: FloatArray, large: FloatArray, columns: set[int]) -> None:
    num_bars = min(len(small), len(large))
    small, large = small[:num_bars], large[:num_bars]
    is_small = np.isin(np.arange(len(COLUMNS)), list(columns))
    mixed = Scaling.fit(np.where(is_small, small, large)).undo(DRAWN)
    expected = np.where(is_small, Scaling.fit(small).undo(DRAWN), Scaling.fit(large).undo(DRAWN))
    np.testing.assert_array_equal(mixed, expected)


def test_float32_holds_prices_below_its_normal_range_with_fewer_digits() -> None:
    close = 1 + 0.01 * np.sin(np.arange(100.0))
    ordinary, tiny = (
        to_bars(dict.fromkeys(("open", "high", "low", "close"), close * size)) for size in (1, 1e-40)
    )
    one, other = Scaling.fit(ordinary), Scaling.fit(tiny)
    np.testing.assert_allclose(other.apply(tiny, CLIP), one.apply(ordinary, CLIP), atol=5e-3)
    undone = (scaling.undo(DRAWN)[..., :VOLUME] for scaling in (one, other))
    np.testing.assert_allclose(next(undone), next(undone) / 1e-40, rtol=1e-4)


@given(lookbacks(st.floats(1e6, 1e11)))
def test_columns_whose_squares_overflow_are_those_of_a_smaller_size(bars: FloatArray) -> None:
    """Here the reference implementation has no number."""
    larger = np.ldexp(bars, 60)
    np.testing.assert_array_equal(Scaling.fit(larger).apply(larger, CLIP), reference(bars)[0])
    np.testing.assert_array_equal(Scaling.fit(larger).undo(DRAWN), np.ldexp(reference(bars)[1], 60))


@given(lookbacks(st.floats(1e11, 1e12)), st.integers(-2, 2))
def test_where_the_reference_has_a_number_large_columns_have_it_too(bars: FloatArray, doublings: int) -> None:
    bars = np.ldexp(bars / np.abs(bars).max(axis=0) * np.float32(MAX_MAGNITUDE), doublings)
    assert_as_reference(bars)


@pytest.mark.parametrize("num_bars", [1, 100, 8192])
def test_the_largest_amounts_have_finite_forecasts(num_bars: int) -> None:
    volume = np.full(num_bars, MAX_MAGNITUDE)
    prices = dict.fromkeys(("open", "high", "low", "close"), volume)
    for bars in (
        to_bars(prices | {"volume": volume}),
        to_bars(prices | {"volume": volume * np.arange(num_bars) / num_bars}),
    ):
        scaling = Scaling.fit(bars)
        assert np.isfinite(scaling.undo(scaling.apply(bars, CLIP))).all()
        assert np.isfinite(scaling.undo(DRAWN)).all()
