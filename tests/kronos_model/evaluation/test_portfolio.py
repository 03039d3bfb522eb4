"""Portfolios by hand, and what holds for any: a perfect forecast, chance, costs, the order of instruments."""

from typing import Any

import numpy as np
import pytest

from kronos_model.evaluation.portfolio import ReturnWindows, portfolio_line, portfolio_report

DAY = np.timedelta64(1, "D")


def windows(
    predicted: np.ndarray, actual: np.ndarray, *, stride: int = 0, order: np.ndarray | None = None
) -> ReturnWindows:
    """Windows of T times and N instruments from returns (T, N, H); ``stride`` is in days, by default H."""
    num_times, num_instruments, horizon = actual.shape
    begins = np.datetime64("2024-01-01") + (stride or horizon) * DAY * np.repeat(
        np.arange(num_times), num_instruments
    )
    instrument = np.tile(np.arange(num_instruments, dtype=np.int32), num_times)
    order = np.arange(len(begins)) if order is None else order
    ours, theirs = (each.reshape(-1, horizon)[order] for each in (predicted, actual))
    momentum = np.random.default_rng(3).normal(size=len(order))[order]
    return ReturnWindows(
        {"model": ours},
        theirs,
        momentum,
        instrument[order],
        begins[order],
        begins[order] + (horizon - 1) * DAY,
    )


def view(returns: ReturnWindows, **options: Any) -> Any:
    return portfolio_report(returns, **{"top": 1, "cost_bps": 0.0, "lags": 0, "seed": 0} | options)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return 0.02 * np.random.default_rng(seed).standard_normal(shape)


def test_two_periods_by_hand():
    predicted = np.array([[0.3, 0.2, 0.1, 0.0], [0.0, 0.3, 0.2, 0.1]])[..., None]
    actual = np.array([[0.10, 0.00, 0.05, -0.10], [0.00, 0.02, 0.00, 0.06]])[..., None]
    found = view(windows(predicted, actual), cost_bps=100.0)
    ours = found["models"]["model"]
    # First: +1 of the first, −1 of the last: 0.1 + 0.1. These then weigh 1.1/1.2 and −0.9/1.2 of the equity.
    # Second: +1 of the second, −1 of the first: 0.02 − 0.
    turnovers = [2.0, (1 + 1.1 / 1.2) + 1 + 0.9 / 1.2]
    net = [1.2 * (1 - 0.01 * turnovers[0]), 1.02 * (1 - 0.01 * turnovers[1])]
    assert ours["turnover"] == pytest.approx(np.mean(turnovers))
    assert ours["return_before_costs"] == pytest.approx(0.11)
    assert ours["return"] == pytest.approx(np.mean(net) - 1)
    assert ours["equity"] == pytest.approx([1, net[0], net[0] * net[1]], abs=1e-6)
    assert ours["max_drawdown"] == pytest.approx(1 - net[1])
    assert ours["hit_rate"] == 1
    # Ranks 4 3 2 1 with 4 2 3 1, and 1 4 3 2 with 1.5 3 1.5 4.
    second = np.corrcoef([1, 4, 3, 2], [1.5, 3, 1.5, 4])[0, 1]
    assert ours["rank_ic"] == [pytest.approx((0.8 + second) / 2)]
    assert (found["num_times"], found["num_periods"]) == (2, 2)
    assert found["equity_times"] == ["2024-01-01T00:00:00", "2024-01-02T00:00:00", "2024-01-02T00:00:00"]
    line = "Top 1 less bottom 1, after costs of 100 bps: +7.93 % on average over 2 periods, by "
    assert portfolio_line(found, "model").startswith(line)


def test_the_t_value_is_newey_and_wests():
    predicted, actual = noise(12, 6, 3), noise(12, 6, 3, seed=1)
    found = view(windows(predicted, actual, stride=1), lags=2)["models"]["model"]
    ranks = [np.argsort(np.argsort(each, axis=1), axis=1) for each in (predicted, actual)]
    for step in range(3):
        ic = np.array(
            [np.corrcoef(*pair)[0, 1] for pair in zip(*(each[..., step] for each in ranks), strict=True)]
        )
        centred = ic - ic.mean()
        variance = centred @ centred / 12
        for lag in (1, 2):
            variance += 2 * (1 - lag / 3) * (centred[lag:] @ centred[:-lag]) / 12
        assert found["rank_ic"][step] == pytest.approx(ic.mean())
        assert found["rank_ic_t"][step] == pytest.approx(ic.mean() / np.sqrt(variance / 11))


def test_a_perfect_forecast_has_rank_ic_1_and_never_falls():
    actual = noise(20, 8, 3)
    found = view(windows(actual, actual), top=2)["models"]["model"]
    assert found["rank_ic"] == [pytest.approx(1)] * 3
    assert (found["hit_rate"], found["max_drawdown"]) == (1, 0)
    opposite = view(windows(-actual, actual), top=2)["models"]["model"]
    assert opposite["rank_ic"] == [pytest.approx(-1)] * 3
    assert opposite["return_before_costs"] == pytest.approx(-found["return_before_costs"])


def test_chance_earns_nothing_and_pays_for_it():
    found = view(windows(noise(300, 10, 1), noise(300, 10, 1, seed=1)), top=3, cost_bps=10.0)
    for at_random in (found["naive"]["random"], found["models"]["model"]):
        assert at_random["rank_ic"][0] == pytest.approx(0, abs=0.05)
        assert at_random["return_before_costs"] == pytest.approx(0, abs=0.002)
        assert at_random["return"] < at_random["return_before_costs"]
        # From one portfolio to the next, an instrument that weighs +1/3, −1/3 or nothing with chances of 3, 3
        # and 4 in 10 moves by 1/3 in 4 · 0.3 · 0.4 of cases, and by 2/3 in 2 · 0.3².
        assert at_random["turnover"] == pytest.approx(10 * (0.48 + 2 * 0.18) / 3, rel=0.05)
    assert abs(found["models"]["model"]["rank_ic_t"][0]) < 3
    assert found["naive"]["random"]["rank_ic_t"] == [None]


def test_costs_scale_with_turnover():
    returns = windows(noise(40, 6, 1), noise(40, 6, 1, seed=1))
    free, cheap, dear = (view(returns, cost_bps=cost)["models"]["model"] for cost in (0.0, 1.0, 5.0))
    assert free["return"] == pytest.approx(free["return_before_costs"])
    assert free["turnover"] == cheap["turnover"] == dear["turnover"]
    paid = [free["return"] - each["return"] for each in (cheap, dear)]
    assert paid[1] == pytest.approx(5 * paid[0])
    assert paid[0] == pytest.approx(1e-4 * free["turnover"], rel=0.05)
    held = np.repeat(np.linspace(0.1, 0.6, 6)[None, :, None], 40, axis=0)
    still = view(windows(held, np.zeros((40, 6, 1))))["models"]["model"]
    assert still["turnover"] == pytest.approx(2 / 40), "it is bought once"


def test_the_order_of_instruments_changes_nothing():
    predicted = noise(15, 7, 2).round(2)  # with equal ones
    actual = noise(15, 7, 2, seed=1)
    mixed = np.random.default_rng(5).permutation(15 * 7)
    one, other = (
        view(windows(predicted, actual, order=order), top=2, cost_bps=5.0) for order in (None, mixed)
    )
    for name in ("models", "naive"):
        for key, by in one[name].items():
            if key == "random":
                continue
            for figure, value in by.items():
                assert other[name][key][figure] == pytest.approx(value), (key, figure)


def test_equal_predictions_hold_nothing():
    found = view(windows(np.zeros((9, 4, 1)), noise(9, 4, 1)))["models"]["model"]
    assert (found["turnover"], found["return"], found["rank_ic"]) == (0, 0, [0])


def test_overlapping_windows_count_for_the_ic_and_not_for_the_equity():
    found = view(windows(noise(10, 4, 4), noise(10, 4, 4, seed=1), stride=2))
    assert (found["num_times"], found["num_periods"]) == (10, 5)


def test_fewer_than_three_instruments_or_common_times_have_no_portfolio():
    assert view(windows(noise(9, 2, 1), noise(9, 2, 1))) is None
    returns = windows(noise(9, 4, 1), noise(9, 4, 1))
    apart = returns.begins + np.arange(len(returns.begins)) * np.timedelta64(1, "s")
    assert view(returns._replace(begins=apart)) is None
    small = view(windows(noise(9, 3, 1), noise(9, 3, 1)), top=5)
    assert small["top"] == 1


def test_a_loss_of_everything_ends_the_equity_at_zero():
    actual = np.array([[-0.9, 0.0, 0.9], [0.1, 0.0, -0.1]])[..., None]
    predicted = np.repeat(np.array([[0.3, 0.2, 0.1]])[..., None], 2, axis=0)
    found = view(windows(predicted, actual))["models"]["model"]
    assert found["equity"] == [1, 0, 0]
    assert found["max_drawdown"] == 1
