"""The drift-free bootstrap has the blocks, the variance and the median that theory gives it."""

import numpy as np
import pytest

from kronos_model.evaluation.naive import NUM_DRAWS, block_lengths, bootstrap_draws

# arch.bootstrap.optimal_block_length of arch 8.0.0, "stationary", for ``series(seed, number, phi)``. arch is
# not installed, because it needs statsmodels, 65 MB. To make the numbers again, in another environment:
#     pip install arch==8.0.0 pytest
#     python -c "from arch.bootstrap import optimal_block_length as of; import \
#     tests.kronos_model.evaluation.test_bootstrap as t; \
#     print(*((*case, of(t.series(*case)).iloc[0, 0]) for *case, _ in t.OF_ARCH), sep='\n')"
# arch gives another length for 5 % of such series: it divides an autocovariance by the variances of the bars
# that overlap, and some cross the bound. Politis and White divide by the variance of all bars. With that in
# arch, its lengths were ours for 400 of 400 series.
OF_ARCH = [
    (24, 63, -0.6, 5.898850924), (25, 127, -0.2, 2.748152112), (26, 399, 0.0, 0.861990925),
    (27, 1000, 0.3, 5.655977318), (28, 63, 0.6, 4.178360120), (29, 127, 0.9, 12.027478602),
    (30, 399, -0.6, 6.473134494), (31, 1000, -0.2, 2.544314479), (32, 63, 0.0, 0.489145049),
    (33, 127, 0.3, 4.084779940), (34, 399, 0.6, 10.738672384), (35, 1000, 0.9, 24.927972179),
    (36, 63, -0.6, 7.835112079), (37, 127, -0.2, 3.564239323), (38, 399, 0.0, 2.318316770),
    (39, 1000, 0.3, 6.319846315),
]  # fmt: skip


def series(seed: int, number: int, phi: float) -> np.ndarray:
    """An autoregression of order 1."""
    noise = np.random.default_rng(seed).standard_normal(number + 100)
    values = np.zeros(number + 100)
    for index in range(1, number + 100):
        values[index] = phi * values[index - 1] + noise[index]
    return values[100:]


def closes(changes: np.ndarray) -> np.ndarray:
    return 100 * np.exp(np.concatenate([[0], changes.cumsum()]))[None]


def drawn_changes(past: np.ndarray, horizon: int, num_paths: int = 3000) -> np.ndarray:
    """The logarithms of all draws' closes over the last one, (draws · paths, H)."""
    draws = [np.log(each[0] / past[0, -1]) for each in bootstrap_draws(past, num_paths, horizon, seed=1)]
    assert len(draws) == NUM_DRAWS
    return np.concatenate(draws)


@pytest.mark.parametrize("number", [63, 127, 399, 1000])
def test_blocks_are_as_long_as_archs(number):
    cases = [(series(*case), expected) for *case, expected in OF_ARCH if case[1] == number]
    changes = np.stack([values - values.mean() for values, _ in cases])
    expected = [max(1.0, length) for _, length in cases]  # shorter than a bar means single bars
    np.testing.assert_allclose(block_lengths(changes), expected, rtol=1e-7)


@pytest.mark.parametrize("num_bars", [63, 128])
def test_the_variance_is_that_of_politis_and_romano(num_bars):
    """Covariances k bars apart, on a circle, times (1 − 1/b)ᵏ; b is 1 below 64 bars."""
    changes, horizon = 0.01 * series(3, num_bars - 1, 0.7), 10
    own = changes - changes.mean()
    kept = 1 - 1 / (block_lengths(own[None])[0] if num_bars >= 64 else 1)
    expected = horizon * (own @ own) / len(own)
    for lag in range(1, horizon):
        expected += 2 * (horizon - lag) * kept**lag * (own @ np.roll(own, -lag)) / len(own)
    found = drawn_changes(closes(changes), horizon)[:, -1].var()
    assert found == pytest.approx(expected, rel=0.04)
    assert (expected > 2 * horizon * own.var()) == (num_bars >= 64)


def test_a_trend_of_the_lookback_is_not_continued():
    past = closes(0.01 + 0.002 * np.random.default_rng(0).standard_normal(99))
    changes = drawn_changes(past, 20)
    assert abs(changes.mean()) < 0.001, "a continued trend is 0.2"


def test_windows_have_draws_of_their_own_and_the_seed_repeats_them():
    past = np.concatenate([closes(0.01 * series(4, 80, 0.3))] * 3)
    first, second = (np.stack([*bootstrap_draws(past, 5, 30, seed=7)]) for _ in range(2))
    assert first.shape == (NUM_DRAWS, 3, 5, 30)
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first[..., -1])) == NUM_DRAWS * 3 * 5


@pytest.mark.parametrize("past", [[5.0, 6.0], [7.0] * 100])
def test_odd_lookbacks_have_finite_draws(past):
    assert all(np.isfinite(draw).all() for draw in bootstrap_draws(np.array([past]), 4, 3, seed=0))
