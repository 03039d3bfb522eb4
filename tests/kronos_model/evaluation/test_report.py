"""The report calls a good model better, a bad one worse, and does not call noise a difference."""

from itertools import pairwise

import numpy as np
import pytest

from kronos_model.evaluation.report import (
    WindowBatch,
    diebold_mariano,
    make_report,
)
from kronos_model.evaluation.scores import spans_of
from kronos_model.evaluation.windows import WindowTimes

LOOKBACK, HORIZON, NUM_WINDOWS = 60, 6, 80
CLOSES = 100 * np.exp(
    0.01 * np.random.default_rng(5).normal(size=(NUM_WINDOWS, LOOKBACK + HORIZON)).cumsum(axis=1)
)
PAST, ACTUAL = CLOSES[:, :LOOKBACK], CLOSES[:, LOOKBACK:]
EACH = np.arange(NUM_WINDOWS)
TIMES = WindowTimes((HORIZON * EACH).astype("datetime64[D]"), EACH, lags=0)


def walks(spread: float, *, seed: int = 0) -> np.ndarray:
    steps = spread * np.random.default_rng(seed).normal(size=(NUM_WINDOWS, 30, HORIZON))
    return PAST[:, -1, None, None] * np.exp(steps.cumsum(axis=2))


def report_on(**models: np.ndarray):
    halves = np.array_split(np.arange(NUM_WINDOWS), 2)
    batches = (
        WindowBatch(PAST[half], ACTUAL[half], {name: samples[half] for name, samples in models.items()})
        for half in halves
    )
    return make_report(batches, TIMES, season=None, seed=0)


def test_a_model_that_sees_the_future_is_better_and_a_bad_one_worse_than_naive():
    cheating = ACTUAL[:, None] * (1 + 0.001 * np.random.default_rng(1).normal(size=(1, 30, 1)))
    report = report_on(cheating=cheating, wild=walks(0.05))
    good, bad = report["models"]["cheating"], report["models"]["wild"]
    assert {by["verdict"] for by in good["against"].values()} == {"better"}
    assert good["verdict"][0] == (
        "Better than a drift-free bootstrap of the lookback, the last value with a spread, the lookback's "
        "trend and a random walk of the lookback's returns on these candles."
    )
    assert "than a drift-free bootstrap of the lookback (95 % interval " in good["verdict"][1]
    assert good["against"]["wild"]["dm"]["p_value"] < 0.001
    assert {by["verdict"] for by in bad["against"].values()} == {"worse"}
    assert bad["verdict"][0].startswith("WORSE than a drift-free bootstrap of the lookback, ")
    assert "too wide" in bad["verdict"][-1]
    assert report["num_windows"] == NUM_WINDOWS


def test_the_true_law_is_calibrated_and_two_samples_of_it_do_not_differ():
    report = report_on(one=walks(0.01), other=walks(0.01, seed=1))
    one = report["models"]["one"]
    assert one["against"]["other"]["verdict"] == "unclear"
    assert one["against"]["other"]["dm"]["p_value"] > 0.05
    assert one["scores"]["coverage"]["0.8"] == pytest.approx(0.8, abs=0.08)
    assert list(report["naive"]) == ["bootstrap", "last_value", "drift", "random_walk"]
    assert report["naive"]["drift"]["volatility_error"] is None
    assert report["naive"]["random_walk"]["volatility_error"] < 0.5


def test_each_span_of_bars_ahead_is_compared_with_the_bootstrap():
    step = np.random.default_rng(1).normal(size=(NUM_WINDOWS, 30, HORIZON))
    seen = np.arange(HORIZON) < HORIZON // 2  # the first half of what follows, and no more
    samples = np.where(seen, ACTUAL[:, None] * (1 + 0.001 * step), walks(0.05))
    by = report_on(half=samples)["models"]["half"]["against"]["bootstrap"]
    spans = by["by_span"]
    assert [spans[0]["first"], spans[-1]["last"]] == [1, HORIZON]
    assert all(one["last"] + 1 == other["first"] for one, other in pairwise(spans))
    assert (spans[0]["verdict"], spans[-1]["verdict"]) == ("better", "worse")
    assert all(span["low"] < span["difference"] < span["high"] for span in spans)


def test_a_long_horizon_has_few_spans():
    assert [len(spans_of(horizon)) for horizon in (1, 3, 8, 9, 512)] == [1, 3, 8, 8, 8]
    assert np.concatenate(spans_of(21)).tolist() == [*range(21)]


def test_the_drift_of_a_short_lookback_flatters_no_model():
    batch = WindowBatch(PAST[:, -8:], ACTUAL, {"true law": walks(0.01)})
    against = make_report([batch], TIMES, season=None, seed=0)["models"]["true law"]["against"]
    assert against["random_walk"]["verdict"] == "better"
    assert against["bootstrap"]["verdict"] == "unclear"


def test_the_bootstrap_has_the_models_paths_and_the_mean_scores_of_ten_draws():
    few, many = (
        make_report([WindowBatch(PAST, ACTUAL, {"m": walks(0.01)[:, :num]})], TIMES, season=None, seed=0)
        for num in (4, 30)
    )
    # The CRPS is fair to few paths, their quantiles are not.
    assert few["naive"]["bootstrap"]["crps"] == pytest.approx(many["naive"]["bootstrap"]["crps"], rel=0.03)
    assert few["naive"]["bootstrap"]["wql"] > 1.03 * many["naive"]["bootstrap"]["wql"]
    held = many["naive"]["bootstrap"]["coverage"]["0.8"] * NUM_WINDOWS * HORIZON
    assert held != pytest.approx(round(held), abs=1e-6), "a tenth of a count"
    assert sum(many["naive"]["bootstrap"]["pit"]) == pytest.approx(1)


def test_few_windows_or_paths_do_not_show_that_intervals_are_too_narrow():
    narrow = walks(0.004)
    report = report_on(narrow=narrow, pair=narrow[:, :4])
    assert report["models"]["narrow"]["verdict"][-1].endswith(" %: too narrow.")
    assert report["models"]["pair"]["verdict"][-1].endswith("4 paths are too few for an 80 % interval.")
    batch = WindowBatch(PAST[:5], ACTUAL[:5], {"narrow": narrow[:5]})
    few = make_report([batch], TIMES.select(range(5)), season=None, seed=0)
    assert few["models"]["narrow"]["verdict"][-2].endswith(" %: perhaps too narrow.")
    assert few["models"]["narrow"]["verdict"][-1].startswith("5 windows are few: ask for 30 or more")
    batch = WindowBatch(PAST[:1], ACTUAL[:1], {"narrow": narrow[:1]})
    one = make_report([batch], TIMES.select([0]), season=None, seed=0)
    assert one["models"]["narrow"]["verdict"][-1].startswith("1 window is few: ask for 30 or more")


def test_a_finetuned_model_that_is_worse_than_before_says_so_first():
    first = report_on(finetuned=walks(0.05), start=walks(0.01))["models"]["finetuned"]["verdict"][0]
    assert first.endswith(" and the model before finetuning on these candles.")
    assert first.startswith("WORSE than ")
    other = report_on(one=walks(0.05), other=walks(0.01))["models"]["one"]["verdict"][0]
    assert "other" not in other, "only what a model must beat comes first"


def test_no_close_that_changes_means_no_comparison():
    flat = np.full((3, LOOKBACK), 10.0)
    batch = WindowBatch(flat, flat[:, :HORIZON], {"flat": np.full((3, 30, HORIZON), 10.0)})
    report = make_report([batch], TIMES.select(range(3)), season=None, seed=0)
    assert report["models"]["flat"]["against"]["drift"]["difference"] is None
    assert report["models"]["flat"]["scores"]["crps"] == pytest.approx(0, abs=1e-12)


def test_diebold_mariano_holds_its_level_for_overlapping_windows():
    rng, rejected = np.random.default_rng(2), 0
    for _ in range(400):
        noise = rng.normal(size=103)
        overlapping = noise[:-3] + noise[1:-2] + noise[2:-1] + noise[3:]
        found = diebold_mariano(overlapping, np.arange(100).astype("datetime64[D]"), lags=3)
        rejected += found["p_value"] < 0.05
    assert 0.02 < rejected / 400 < 0.12


def test_diebold_mariano_takes_instruments_at_one_time_as_one():
    rng = np.random.default_rng(4)
    each, times = rng.normal(size=40) + 0.2, np.arange(40).astype("datetime64[D]")
    once = diebold_mariano(each, times, lags=0)
    assert diebold_mariano(np.tile(each, 5), np.tile(times, 5), lags=0) == pytest.approx(once)
    assert diebold_mariano(each[:5], times[:5], lags=0) is None
