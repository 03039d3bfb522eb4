"""Corrections hold their share of further closes, whatever the model's quantiles are."""

import numpy as np

from kronos_model.evaluation.calibration import (
    MIN_WINDOWS,
    Correction,
    corrected,
    fit_correction,
    references,
)

LEVELS = (0.05, 0.1, 0.5, 0.9, 0.95)
HORIZON = 4
NARROW = np.array([-1.0, -0.8, -0.4, 0.3, 0.5])


def windows(number: int, seed: int, noise: float = 0.0) -> tuple[np.ndarray, ...]:
    """Quantiles that are too narrow and too low, actual closes, anchors, and scales that differ."""
    rng = np.random.default_rng(seed)
    anchor, scale = rng.uniform(50, 100, number), np.exp(rng.normal(size=number))
    steps = np.sqrt(np.arange(1, HORIZON + 1))
    actual = anchor[:, None] + scale[:, None] * steps * rng.standard_t(4, size=(number, HORIZON))
    own = NARROW[:, None, None] + noise * rng.normal(size=(len(LEVELS), number, HORIZON))
    return anchor[:, None] + own * scale[:, None] * steps, actual, anchor, scale


def interval(windows: tuple[np.ndarray, ...], fit: Correction) -> tuple[np.ndarray, np.ndarray]:
    """Which closes the 80 % interval holds, and its width in scales."""
    quantiles, actual, anchor, scale = windows
    low, high = corrected((0.1, 0.9), quantiles[[1, 3]], LEVELS, fit, anchor, scale)
    return (low <= actual) & (actual <= high), (high - low) / scale[:, None]


def test_the_corrected_interval_holds_80_percent_of_further_closes_at_each_step():
    fit, further = fit_correction(LEVELS, *windows(400, seed=1)), windows(2000, seed=2)
    assert ((further[0][1] <= further[1]) & (further[1] <= further[0][3])).mean() < 0.5
    np.testing.assert_allclose(interval(further, fit)[0].mean(axis=0), 0.8, atol=0.04)


def test_noise_in_the_quantiles_of_few_paths_does_not_widen_the_interval():
    fit, further = fit_correction(LEVELS, *windows(400, seed=1, noise=1.0)), windows(2000, seed=2, noise=1.0)
    held, width = interval(further, fit)
    assert fit.weight <= 0.1
    np.testing.assert_allclose(held.mean(), 0.8, atol=0.03)
    plain = interval(windows(2000, seed=2), fit_correction(LEVELS, *windows(400, seed=1)))[1]
    assert width.mean() < 1.03 * plain.mean()


def test_quantiles_that_see_more_than_the_lookback_are_kept():
    """The model sees a volatility that the scale does not."""
    rng = np.random.default_rng(1)
    volatility = np.exp(rng.normal(size=400))
    actual = volatility[:, None] * rng.normal(size=(400, HORIZON))
    own = np.array([-1.64, -1.28, 0.0, 1.28, 1.64])[:, None, None] * volatility[:, None]
    quantiles = np.broadcast_to(own, (len(LEVELS), 400, HORIZON))
    assert fit_correction(LEVELS, quantiles, actual, np.zeros(400), np.ones(400)).weight >= 0.9


def test_the_guarantee_holds_for_few_windows():
    """Over many fits, at most p of the closes lie below the quantile p, and above that of 1 − p."""
    outside = []
    for seed in range(200):
        quantiles, actual, anchor, scale = windows(MIN_WINDOWS + 1, seed)
        fit = fit_correction(LEVELS, quantiles[:, 1:], actual[1:], anchor[1:], scale[1:])
        new = corrected(LEVELS, quantiles[:, :1], LEVELS, fit, anchor[:1], scale[:1])
        outside.append([(actual[:1] < new[1]).mean(), (actual[:1] > new[3]).mean()])
    assert (np.mean(outside, axis=0) <= 0.1 + 0.03).all()


def test_the_rank_is_the_outer_one():
    quantiles, actual = np.zeros((5, MIN_WINDOWS, 1)), np.arange(1.0, MIN_WINDOWS + 1)[:, None]
    fit = fit_correction(LEVELS, quantiles, actual, np.zeros(MIN_WINDOWS), np.ones(MIN_WINDOWS))
    assert fit.shifts[:, 0].tolist() == [1, 3, 16, 28, 30]  # of positions 1.55, 3.1, 15.5, 27.9 and 29.45


def test_levels_between_are_interpolated_in_any_order_and_never_cross():
    fit = Correction(0.5, np.array([[-3.0, -9.0], [-1.0, 0.0], [0.0, 0.0], [2.0, 0.0], [4.0, 5.0]]))
    anchor, quantiles = np.array([1.0]), np.array([5.0, -5.0, 1.0])[:, None, None]  # for 0.9, 0.1, 0.3
    moved = corrected((0.9, 0.1, 0.3), quantiles, LEVELS, fit, anchor, np.array([2.0]))
    np.testing.assert_allclose(moved[:, 0, 0], [7, -4, 0])
    crossing = corrected((0.1, 0.9), quantiles[:2], LEVELS, fit, anchor, np.array([0.1]))
    assert crossing[0] <= crossing[1]


def test_prices_refer_to_the_last_close_and_its_recent_changes_and_volumes_to_their_mean():
    past = np.zeros((2, 9, 6), np.float32)
    past[0, :, 3], past[0, :, 4] = np.cumsum([10, 1, -1, 1, -1, 1, -1, 8, -8]), np.arange(9)
    past[1, :, 3] = 7
    anchor, scale = references(past)
    assert anchor.tolist() == [[10, 10, 10, 10, 4, 0], [7, 7, 7, 7, 0, 0]]
    recent = scale[0, 0]
    assert 2.75 < recent < 8  # the plain mean of the changes, and the last of them
    np.testing.assert_array_equal(scale, [[recent] * 4 + [4, np.nan], [np.nan] * 6])


def test_a_lookback_that_never_changes_is_left_alone():
    quantiles, *_ = windows(1, seed=1)
    fit = fit_correction(LEVELS, *windows(40, seed=1))
    alone = corrected(LEVELS, quantiles, LEVELS, fit, np.array([5.0]), np.array([np.nan]))
    np.testing.assert_array_equal(alone, quantiles)
