"""Adaptive intervals hold what they promise through breaks of volatility, and cost little without one."""

import numpy as np
import pytest

from kronos_client.contract.errors import JobError
from kronos_client.feeds.adaptive import changes, clipped, errors, factors
from tests.kronos_client.feeds.test_forecasts import client, worker  # noqa: F401
from tests.kronos_client.feeds.test_scores import bars

LEVELS = np.array([0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975])
NORMAL = np.array([-1.959964, -1.281552, -0.67449, 0, 0.67449, 1.281552, 1.959964])
NUM_SERIES, HORIZON = 20, 12


def loss(quantiles: np.ndarray, actual: np.ndarray) -> float:
    error = actual[..., None] - quantiles
    return np.maximum(LEVELS * error, (LEVELS - 1) * error).mean()


def simulate(volatility: np.ndarray, seed: int, degrees: float) -> tuple[np.ndarray, dict[int, list[float]]]:
    """Twenty series; half of their variance is common, and their model's volatility is always 1.

    Returns:
        Whether the 80 % interval held the outcome, (S, 2, T), 1 and 12 steps ahead; by steps ahead the loss
        of the adaptive quantiles and of the model's own.
    """
    rng, num_ticks = np.random.default_rng(seed), len(volatility) - HORIZON
    size = np.sqrt((degrees - 2) / degrees / 2)
    shape = (NUM_SERIES, len(volatility))
    noise = rng.standard_t(degrees, shape[1]) + rng.standard_t(degrees, shape)
    walk = np.concatenate([np.zeros((NUM_SERIES, 1)), np.cumsum(size * noise * volatility, axis=1)], axis=1)
    steps = np.arange(1, HORIZON + 1)
    actual = np.stack([walk[:, step : step + num_ticks] - walk[:, :num_ticks] for step in steps], axis=1)
    own, shared = np.zeros((NUM_SERIES, 3)), np.zeros((3, HORIZON))
    width = NORMAL[-3:, None][::-1] * np.sqrt(steps)  # (3, H)
    issued = np.empty((num_ticks, NUM_SERIES, 3, HORIZON))
    for tick in range(num_ticks):
        ahead = steps[: min(tick, HORIZON)] - 1
        if len(ahead):  # the bar that came was forecast 1 to 12 ticks ago
            sums = np.zeros((NUM_SERIES, 6, HORIZON))
            sums[:, 0, ahead] = 1
            came = np.abs(actual[:, ahead, tick - 1 - ahead])  # (S, steps)
            sums[:, 1:4, ahead] = came[:, None] <= issued[tick - 1 - ahead, ..., ahead].transpose(1, 2, 0)
            of_each, of_all = changes(errors(sums), NUM_SERIES)
            own, shared = clipped(own + of_each), clipped(shared + of_all.sum(axis=0))
        issued[tick] = factors(own, np.broadcast_to(shared, (NUM_SERIES, *shared.shape))) * width
    some = [0, HORIZON - 1]
    ends = np.moveaxis(issued[..., some], 0, -1)  # (S, 3, 2, T)
    middle = np.zeros((NUM_SERIES, 1, 2, num_ticks))
    quantiles = np.moveaxis(np.concatenate([-ends, middle, ends[:, ::-1]], axis=1), 1, -1)
    model = np.sqrt(steps[some])[:, None, None] * NORMAL
    held = np.abs(actual[:, some]) <= ends[:, 1]
    losses = {
        step + 1: [loss(table, actual[:, step]) for table in (np.sort(quantiles[:, at], axis=-1), model[at])]
        for at, step in enumerate(some)
    }
    return held, losses


def worst_100(held: np.ndarray) -> float:
    sums = np.cumsum(held, axis=-1)
    return float((sums[..., 100:] - sums[..., :-100]).min() / 100)


def breaks(rng: np.random.Generator) -> np.ndarray:
    """Volatility that is three times as high, or a third, for some hundred ticks or until the end."""
    volatility = np.ones(1000 + HORIZON)
    first = int(rng.integers(100, 700))
    volatility[first : first + int(rng.integers(150, 1000))] = rng.choice([3, 1 / 3])
    return volatility


@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 300), marks=pytest.mark.at_length)], ids=str
)
def test_intervals_hold_what_they_promise_through_breaks(seeds):
    for each in seeds:
        held, _ = simulate(breaks(np.random.default_rng(each)), each, degrees=8)
        each_series, together = held[:, 0], held[:, 1].mean(axis=0)
        assert each_series.mean(axis=-1).min() >= 0.77
        assert each_series.mean(axis=-1).max() <= 0.83
        assert worst_100(each_series) >= 0.6
        assert 0.77 <= together.mean() <= 0.83
        assert worst_100(together) >= 0.6, each


@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 100), marks=pytest.mark.at_length)], ids=str
)
def test_without_a_break_they_cost_at_most_2_per_cent(seeds):
    for each in seeds:
        _, losses = simulate(np.ones(1000 + HORIZON), each, degrees=100)
        assert all(adaptive <= 1.02 * own for adaptive, own in losses.values()), losses


OPTIONS = {
    "pred_len": 2,
    "sample_count": 30,
    "calibration": "adaptive",
    "quantiles": LEVELS.tolist(),
    "seed": 1,
}


def test_a_feed_corrects_by_its_record_and_begins_anew_with_a_model(client, monkeypatch):  # noqa: F811
    with client.feed("f", **OPTIONS) as feed, client.feed("g", **OPTIONS | {"calibration": None}) as plain:
        for number, each in enumerate([bars("s1", 30), *(bars("s1", 1, first) for first in range(30, 45))]):
            if number == 15:
                monkeypatch.setattr("kronos_client.testing.STAND_IN", "newer")
            for one in (feed, plain):
                one.append(each)
                client.compute()
        updates, own = ([*one.updates(after="0", timeout_s=0.01)] for one in (feed, plain))
        closes = bars("s1", 45)["close"].to_numpy(np.float32)
        shared, issued = np.zeros((3, 2)), []
        for number, (update, model) in enumerate(zip(updates, own, strict=True)):
            sums = np.zeros((6, 2))
            for step, earlier in enumerate(issued[:-3:-1]):
                low, high = earlier[:3, step], earlier[:-4:-1, step]
                sums[:4, step] = [1, *((low <= closes[29 + number]) & (closes[29 + number] <= high))]
            shared = clipped(shared + changes(errors(sums), 1)[1]) if number < 15 else np.zeros((3, 2))
            by = np.array(update.forecast.manifest.widened_by)
            assert by == pytest.approx(factors(np.zeros(3), shared), abs=1e-5)
            tables = [
                np.array([one.forecast.quantiles[str(level)]["close"] for level in LEVELS])
                for one in (update, model)
            ]
            issued.append(tables[0].astype(np.float32))
            assert tables[0][1] == pytest.approx(tables[1][3] + by[1] * (tables[1][1] - tables[1][3]))
            assert (np.diff(tables[0], axis=0) >= 0).all()
            assert update.forecast.mean == model.forecast.mean


@pytest.mark.parametrize(
    ("given", "field"),
    [({"sample_count": 10}, "sample_count"), ({"calibration": "split"}, "calibration")],
)
def test_options_that_make_no_adaptive_feed_are_refused(client, given, field):  # noqa: F811
    with pytest.raises(JobError) as error:
        client.feed("f", **OPTIONS | given)
    assert error.value.field == field
