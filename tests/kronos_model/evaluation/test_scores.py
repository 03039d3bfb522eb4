"""Scores of sampled closes against a reference library, and against forecasts whose scores are known."""

import importlib
import sys
from statistics import NormalDist
from types import ModuleType

import numpy as np
import pytest

from kronos_model.evaluation.scores import (
    LEVELS,
    ScoreTotals,
    information_coefficients,
    sample_quantiles,
    score_paths,
    volatility_error,
)
from kronos_model.evaluation.windows import one_bar_change

RNG = np.random.default_rng(3)
PAST = 100 + RNG.normal(size=(200, 50)).cumsum(axis=1)


def normal_windows(num_paths: int = 30, spread: float = 1.0):
    """Closes at N(last, 1), and paths that are drawn from N(last, spread²)."""
    last = PAST[:, -1]
    actual = last[:, None] + RNG.normal(size=(200, 4))
    samples = last[:, None, None] + spread * RNG.normal(size=(200, num_paths, 4))
    return samples, actual


@pytest.fixture(scope="module")
def scoringrules() -> ModuleType:
    """Without Numba, for which it would compile all its functions at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numba", None)
        return importlib.import_module("scoringrules")


@pytest.mark.parametrize("num_paths", [5, 200])
def test_crps_is_that_of_the_distribution_whatever_the_number_of_paths(scoringrules, num_paths):
    samples, actual = normal_windows(num_paths)
    exact = scoringrules.crps_normal(actual, PAST[:, -1:], 1.0).mean()
    assert score_paths(samples, actual, PAST)["crps"].mean() == pytest.approx(exact, rel=0.06)


def test_crps_quantile_loss_and_error_are_those_of_the_library(scoringrules):
    samples, actual = normal_windows()
    scores, quantiles = score_paths(samples, actual, PAST), sample_quantiles(samples, LEVELS)
    crps = scoringrules.crps_ensemble(actual, samples, m_axis=1, estimator="fair")
    np.testing.assert_allclose(scores["crps"], crps)
    by_level = zip(quantiles, LEVELS, strict=True)
    each = [scoringrules.quantile_score(actual, values, level) for values, level in by_level]
    np.testing.assert_allclose(scores["quantile_loss"], np.mean(each, axis=0))
    np.testing.assert_allclose(scores["error"], np.abs(actual - quantiles[4]))


def test_calibrated_paths_have_flat_pit_and_nominal_coverage():
    totals = ScoreTotals(has_paths=True)
    for _ in range(20):
        samples, actual = normal_windows()
        totals.add([samples], actual, PAST)
    scores = totals.scores(np.arange(4000).astype("datetime64[D]"))
    assert scores["coverage"] == {
        share: pytest.approx(float(share), abs=0.015) for share in ("0.5", "0.8", "0.9")
    }
    assert scores["pit"] == [pytest.approx(0.1, abs=0.01)] * 10
    width = 2 * NormalDist().inv_cdf(0.9)
    assert scores["width"]["0.8"] == pytest.approx(width, rel=0.08)  # few paths need more width
    assert len(scores["by_horizon"]["crps"]) == len(scores["by_horizon"]["wql"]) == 4


def test_narrow_paths_hold_too_little_and_pile_up_at_both_ends():
    totals = ScoreTotals(has_paths=True)
    samples, actual = normal_windows(spread=0.3)
    totals.add([samples], actual, PAST)
    scores = totals.scores(np.arange(200).astype("datetime64[D]"))
    assert scores["coverage"]["0.8"] < 0.5
    assert min(scores["pit"][0], scores["pit"][-1]) > 0.2


def test_direction_counts_only_closes_that_moved():
    past = np.full((4, 3), 10.0)
    samples = np.array([11.0, 9.0, 11.0, 10.0]).repeat(5).reshape(4, 5, 1)
    actual = np.array([[12.0], [12.0], [10.0], [12.0]])
    np.testing.assert_array_equal(
        score_paths(samples, actual, past)["direction"].ravel(), [1, 0, np.nan, np.nan]
    )


def test_volatility_error_is_in_volatilities_of_the_lookback():
    past = np.exp(np.tile([0.0, 0.01], 10))[None]
    samples = past[:, None, -1:] * np.exp(0.02 * np.arange(1, 5))[None, None].repeat(3, axis=1)
    actual = past[:, -1:] * np.exp(0.01 * np.arange(1, 5))
    assert volatility_error(samples, actual, past) == pytest.approx(1.0)
    assert np.isnan(volatility_error(samples, actual, np.ones((1, 20))))


def test_information_coefficients_correlate_instruments_at_each_time():
    from scipy.stats import spearmanr  # half a second in every process that collects this file

    predicted, actual = RNG.normal(size=(2, 12))
    times = np.repeat(np.array(["2024-01-01", "2024-01-02", "2024-01-03"], "datetime64[D]"), [5, 5, 2])
    order = RNG.permutation(12)  # two instruments at the last time are too few
    found = information_coefficients(predicted[order], actual[order], times[order])
    days = [slice(0, 5), slice(5, 10)]
    assert found["ic"] == pytest.approx(np.mean([np.corrcoef(predicted[d], actual[d])[0, 1] for d in days]))
    assert found["rank_ic"] == pytest.approx(
        np.mean([spearmanr(predicted[d], actual[d]).statistic for d in days])
    )
    assert information_coefficients(predicted, actual, np.arange(12).astype("datetime64[D]"))["ic"] is None


def test_the_scale_is_the_mean_change_and_a_constant_lookback_has_none():
    closes = np.array([[1.0, 3.0, 2.0], [4.0, 4.0, 4.0], [4.0, 4.0, 5.0]])
    np.testing.assert_array_equal(one_bar_change(closes), [1.5, np.nan, 0.5])
