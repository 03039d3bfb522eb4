"""The drift alarm: seldom false, over a year and all series of a feed, and soon there when intervals fail."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from kronos_client.client import ForecastClient
from kronos_client.feeds.drift import ALARM, NOMINAL, SeriesState, grown
from kronos_client.feeds.scores import Due, PendingForecast
from tests.kronos_client.feeds.test_forecasts import client, worker  # noqa: F401
from tests.kronos_client.feeds.test_scores import bars


def alarms(
    chance: float, num_feeds: int, num_series: int, num_bars: int, expected: float = NOMINAL
) -> np.ndarray:
    """Whether each feed had an alarm in a year of so many bars whose intervals hold with this chance.

    Half of the series' outcomes are one common outcome.
    """
    rng, evidence = np.random.default_rng(0), np.zeros((num_feeds, num_series, 2, 2))
    has_alarm = np.zeros(num_feeds, bool)
    for _ in range(num_bars):
        common, own = rng.random((num_feeds, 1, 2)), rng.random((num_feeds, num_series, 2))
        has_held = np.where(rng.random(own.shape) < 0.5, common, own) < chance
        evidence = grown(evidence, has_held, 1 / num_bars, num_series, expected)
        has_alarm |= (evidence >= ALARM).any(axis=(1, 2, 3))
    return has_alarm


@pytest.mark.parametrize("chance", [0.75, 0.8, 0.85])
@pytest.mark.parametrize(
    ("num_feeds", "num_bars"),
    [(300, 1000), pytest.param(3000, 8766, marks=pytest.mark.at_length)],
    ids=["short", "long"],
)
def test_at_most_one_feed_of_a_hundred_has_a_false_alarm_in_a_year(chance, num_feeds, num_bars):
    assert alarms(chance, num_feeds, 10, num_bars).mean() <= 0.01


@pytest.mark.parametrize(("chance", "expected"), [(0.4, 0.8), (1.0, 0.8), (0.2, 0.6), (0.8, 0.4)])
def test_drift_is_found(chance, expected):
    assert alarms(chance, 20, 10, 1000, expected).all()


@pytest.mark.parametrize("chance", [0.02, 0.3, 0.6, 0.99])
def test_what_a_recorded_backtest_held_is_no_drift(chance):
    assert alarms(chance, 300, 10, 1000, chance).mean() <= 0.01


DAY_US = 86_400_000_000


def missed(first_day: int, num_steps: int) -> Due:
    """A forecast of closes of 1 whose intervals all lie above; all its bars have come."""
    times = DAY_US * np.arange(first_day, first_day + num_steps)
    quantiles = np.full((2, 7, num_steps), 2.0, np.float32)
    forecast = PendingForecast("m", 0, times, quantiles, 1.0, 1.0, np.array([], np.float32))
    return Due(forecast, 0, num_steps)


def judge(state: SeriesState, forecasts: list[Due]) -> None:
    state.test(forecasts, DAY_US * np.arange(1000), np.ones(1000), num_series=1)


def test_forecasts_that_overlap_are_tested_once():
    overlapping, apart = SeriesState("m", 0), SeriesState("m", 0)
    judge(overlapping, [missed(day, 3) for day in range(10, 19)])
    judge(apart, [missed(day, 3) for day in range(10, 19, 3)])
    assert overlapping.tests[1] == apart.tests[1]
    assert overlapping.tests[0][0] > apart.tests[0][0]  # those one bar ahead do not overlap


def test_an_alarm_begins_at_100_and_ends_below_1():
    state = SeriesState("m", 0, tests=((60.0, 0.0, 5 * DAY_US), (0.0, 0.0, 5 * DAY_US)))
    held = missed(100, 1)
    held.forecast.quantiles[:, :3] = 0.0  # from 0 to 2
    judge(state, [missed(10, 1)])
    assert state.drift == "too_narrow"  # 105
    evidence = [state.tests[0][0]]
    while state.drift:
        held.forecast.times[:] += DAY_US
        judge(state, [held])
        evidence.append(state.tests[0][0])
    assert evidence[-1] < 1 <= evidence[-2]
    quiet = SeriesState("m", 0, tests=((50.0, 0.0, 5 * DAY_US), (0.0, 0.0, 5 * DAY_US)))
    judge(quiet, [missed(10, 1)])
    assert quiet.drift is None  # 87.5


def windows() -> Iterator[tuple[int, pd.DataFrame]]:
    """New bars of a series that jumps until bar 50, and of one that never does, by the number of all bars."""
    made = bars("s1", 80).assign(ds=pd.date_range("2020-01-01", periods=80, tz="UTC"))
    jumps = np.where(np.arange(80) % 2 & (np.arange(80) < 50), 2.0, 1.0)
    prices = ["open", "high", "low", "close"]
    made[prices] = made[prices].mul(jumps, axis=0)
    other = made.assign(unique_id="calm", **bars("s1", 80)[prices])
    for first, last in ((0, 10), *((end - 1, end) for end in range(11, 80))):
        yield last, pd.concat([made[first:last], other[first:last]])


def test_an_alarm_is_in_the_table_and_in_updates_until_its_reason_is_gone(client):  # noqa: F811
    with client.feed("f", pred_len=1, sample_count=20) as feed:
        for last, new in windows():
            feed.append(new)
            client.compute()
            if last == 50:
                found = {row["id"]: row["drift"] for row in feed.rows()}
                assert found == {"calm": None, "s1": "too_narrow"}
        drifts = [one.drift for one in feed.updates(after="0", timeout_s=0.01) if one.series == "s1"]
        assert drifts[0] is None
        assert "too_narrow" in drifts
        assert [row["drift"] for row in feed.rows()] == [None, None]


@pytest.mark.parametrize("calibration", [None, "adaptive"])
def test_intervals_that_nothing_corrects_are_to_hold_what_the_recorded_backtest_did(
    worker,  # noqa: F811
    redis_server,
    calibration,
):
    worker.recorded_coverage = 0.05
    with (
        ForecastClient(redis_server.url) as own,
        own.feed("f", pred_len=1, sample_count=20, calibration=calibration) as feed,
    ):
        for last, new in windows():
            feed.append(new)
            worker.run()
            if last == 49:
                break
        found = {row["id"]: row["drift"] for row in feed.rows()}
    assert found == {"calm": "too_wide", "s1": None} if calibration is None else found["calm"] is None
