"""Corrections hold their share of further closes, whatever the model's quantiles are."""

import numpy as np
import pytest

from kronos_model.evaluation.calibration import MIN_WINDOWS, corrected, fit_corrections

LEVELS = (0.05, 0.1, 0.5, 0.9, 0.95)
HORIZON = 4


def windows(number: int, seed: int) -> tuple[np.ndarray, ...]:
    """Quantiles that are too narrow and too low, actual closes, and scales that differ by instrument."""
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.normal(size=number))
    steps = np.sqrt(np.arange(1, HORIZON + 1))
    actual = 100 + scale[:, None] * steps * rng.standard_t(4, size=(number, HORIZON))
    narrow = np.array([-1.0, -0.8, -0.4, 0.3, 0.5])
    return 100 + narrow[:, None, None] * scale[:, None] * steps, actual, scale


def test_the_corrected_interval_holds_80_percent_of_further_closes_at_each_step():
    corrections = fit_corrections(LEVELS, *windows(400, seed=1))
    quantiles, actual, scale = windows(2000, seed=2)
    low, high = corrected((0.1, 0.9), quantiles[[1, 3]], LEVELS, corrections, scale)
    assert ((quantiles[1] <= actual) & (actual <= quantiles[3])).mean() < 0.5
    np.testing.assert_allclose(((low <= actual) & (actual <= high)).mean(axis=0), 0.8, atol=0.04)


def test_the_guarantee_holds_for_few_windows():
    """Over many fits, at most p of the closes lie below the quantile p, and above that of 1 − p."""
    outside = []
    for seed in range(200):
        quantiles, actual, scale = windows(MIN_WINDOWS + 1, seed)
        corrections = fit_corrections(LEVELS, quantiles[:, 1:], actual[1:], scale[1:])
        new = corrected(LEVELS, quantiles[:, :1], LEVELS, corrections, scale[:1])
        outside.append([(actual[:1] < new[1]).mean(), (actual[:1] > new[3]).mean()])
    assert (np.mean(outside, axis=0) <= 0.1 + 0.03).all()


def test_the_rank_is_the_outer_one():
    quantiles, actual = np.zeros((5, MIN_WINDOWS, 1)), np.arange(1.0, MIN_WINDOWS + 1)[:, None]
    corrections = fit_corrections(LEVELS, quantiles, actual, np.ones(MIN_WINDOWS))
    assert corrections[:, 0].tolist() == [1, 3, 16, 28, 30]  # of positions 1.55, 3.1, 15.5, 27.9 and 29.45


def test_levels_between_are_interpolated_in_any_order_and_never_cross():
    corrections = np.array([[-3.0, -9.0], [-1.0, 0.0], [0.0, 0.0], [2.0, 0.0], [4.0, 5.0]])
    quantiles = np.array([5.0, -5.0, 0.0])[:, None, None].repeat(1, axis=2)  # for 0.9, 0.1, 0.3
    moved = corrected((0.9, 0.1, 0.3), quantiles, LEVELS, corrections, np.array([2.0]))
    np.testing.assert_allclose(moved[:, 0, 0], [9, -7, -1])
    crossing = corrected(
        (0.1, 0.9), np.array([5.0, -5.0])[:, None, None], LEVELS, corrections, np.array([0.1])
    )
    assert crossing[0] <= crossing[1]


@pytest.mark.parametrize("scale", [0.0, np.nan])
def test_a_lookback_that_never_changes_is_left_alone(scale):
    quantiles, *_ = windows(1, seed=1)
    corrections = fit_corrections(LEVELS, *windows(40, seed=1))
    np.testing.assert_array_equal(
        corrected(LEVELS, quantiles, LEVELS, corrections, np.array([scale])), quantiles
    )
