import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronos_model.evaluation.scores import (
    LEVELS,
    MIN_GROUPS,
    Improvement,
    coverage,
    improvement,
    mae,
    one_bar_change,
    pinball,
)

PRICES = st.floats(-1e3, 1e3, width=32)


def test_scores_by_hand():
    actual = np.array([[10.0, 12.0], [5.0, 5.0]])
    point = np.array([[11.0, 9.0], [5.0, 4.0]])
    closes = np.array([[1.0, 3.0, 2.0], [7.0, 7.0, 8.0]])
    assert mae(actual, point).tolist() == [2, 0.5]
    assert one_bar_change(closes).tolist() == [1.5, 0.5]
    low = np.array([[9.0, 12.0], [6.0, 2.0]])
    high = np.array([[11.0, 12.0], [8.0, 4.0]])
    assert coverage(actual, low, high).tolist() == [1, 0]


def test_pinball_by_hand():
    quantiles = np.array([[[8.0, 8.0], [13.0, 11.0]]])  # levels 0.2 and 0.9, two steps
    # 0.2 · 2, 0.2 · 4, and for the upper one 0.1 · 3, 0.9 · 1.
    expected = (0.4 + 0.8 + 0.3 + 0.9) / 4
    assert pinball(np.array([[10.0, 12.0]]), quantiles, (0.2, 0.9)) == pytest.approx([expected])
    with pytest.raises(ValueError, match="2 quantiles do not match 9 levels"):
        pinball(np.array([[10.0, 12.0]]), quantiles)


def test_a_perfect_forecast_has_no_loss_and_covers_everything():
    actual = np.random.default_rng(0).standard_normal((4, 7))
    quantiles = np.repeat(actual[:, None], len(LEVELS), axis=1)
    assert not mae(actual, actual).any()
    assert not pinball(actual, quantiles).any()
    assert (coverage(actual, quantiles[:, 0], quantiles[:, -1]) == 1).all()


def test_the_pinball_loss_of_one_number_at_all_levels_is_half_its_absolute_error():
    actual = np.random.default_rng(0).standard_normal((4, 7))
    constant = np.full((4, len(LEVELS), 7), 0.3)
    np.testing.assert_allclose(pinball(actual, constant), mae(actual, constant[:, 0]) / 2)


def test_the_last_value_has_a_mase_of_one_if_the_future_moves_like_the_past():
    closes = np.array([[3.0, 5.0, 3.0, 5.0]])
    assert (mae(np.array([[3.0]]), closes[:, -1:]) / one_bar_change(closes)).tolist() == [1]


def test_a_constant_lookback_has_no_scale():
    closes = np.array([[4.0, 4.0, 4.0], [4.0, 4.0, 5.0]])
    assert np.isnan(one_bar_change(closes)).tolist() == [True, False]


def test_the_80_percent_interval_of_a_normal_distribution_covers_80_percent():
    z = 1.2815515655446004  # the 0.9 quantile
    actual = np.random.default_rng(1).standard_normal((200, 50))
    share = coverage(actual, np.full_like(actual, -z), np.full_like(actual, z)).mean()
    assert share == pytest.approx(0.8, abs=4 * np.sqrt(0.16 / actual.size))  # four standard errors


@given(st.lists(PRICES, min_size=1, max_size=30), st.sampled_from(LEVELS), PRICES)
def test_no_number_has_less_pinball_loss_than_the_quantile(sample, level, other):
    actual = np.array([sample])

    def loss(quantile: float) -> float:
        return pinball(actual, np.full((1, 1, len(sample)), quantile), (level,)).item()

    assert loss(np.quantile(sample, level, method="inverted_cdf")) <= loss(other) + 1e-9


def test_an_improvement_is_a_share_of_the_other_loss():
    ours, theirs = np.full(10, 0.9), np.full(10, 1.0)
    assert improvement(ours, theirs) == pytest.approx((10, 10, 10))
    assert improvement(theirs, ours).outcome == "worse"
    assert improvement(ours, theirs).outcome == "better"
    assert improvement(ours, ours) == (0, 0, 0)


def test_the_interval_is_that_of_the_mean_difference():
    rng = np.random.default_rng(2)
    theirs = 10 + rng.standard_normal(400)
    difference = 1 + 2 * rng.standard_normal(400)
    by = improvement(theirs - difference, theirs)
    standard_error = difference.std() / np.sqrt(400)
    expected = 100 * difference.mean() / theirs.mean()
    assert by.mean == pytest.approx(expected)
    half_width = 1.96 * 100 * standard_error / theirs.mean()
    assert by.low == pytest.approx(expected - half_width, abs=0.1 * half_width + 0.1)
    assert by.high == pytest.approx(expected + half_width, abs=0.1 * half_width + 0.1)


def test_noise_alone_is_unclear_and_a_seed_gives_the_same_interval():
    rng = np.random.default_rng(3)
    ours, theirs = rng.uniform(1, 2, (2, 50))
    by = improvement(ours, theirs, seed=5)
    assert by.low < 0 < by.high
    assert by.outcome == "unclear"
    assert improvement(ours, theirs, seed=5) == by
    assert improvement(ours, theirs, seed=6) != by


def test_repeated_windows_do_not_narrow_the_interval():
    rng = np.random.default_rng(4)
    ours, theirs = rng.uniform(1, 2, (2, 20))
    alone = improvement(ours, theirs)
    groups = np.repeat(np.arange(20), 9)
    grouped = improvement(np.repeat(ours, 9), np.repeat(theirs, 9), groups=groups)
    apart = improvement(np.repeat(ours, 9), np.repeat(theirs, 9))
    assert grouped == pytest.approx(alone)
    assert apart.high - apart.low < 0.5 * (alone.high - alone.low)


def test_too_few_groups_have_no_interval():
    losses = np.ones(MIN_GROUPS)
    assert improvement(losses / 2, losses).outcome == "better"
    by = improvement(losses[1:] / 2, losses[1:])
    assert by.mean == 50
    assert np.isnan([by.low, by.high]).all()
    assert by.outcome == "unclear"
    assert improvement(losses / 2, losses, groups=np.zeros(MIN_GROUPS, np.int64)).outcome == "unclear"


def test_a_loss_of_zero_cannot_be_beaten():
    zero, one = np.zeros(8), np.ones(8)
    assert improvement(zero, zero) == (0, 0, 0)
    assert improvement(one, zero) == (-np.inf, -np.inf, -np.inf)
    assert improvement(one, zero).outcome == "worse"
    assert improvement(zero, one) == Improvement(100, 100, 100)


def test_losses_of_different_windows_are_refused():
    with pytest.raises(ValueError, match="3 and 2 windows"):
        improvement(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="0 and 0 windows"):
        improvement(np.ones(0), np.ones(0))
