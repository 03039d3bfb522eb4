import json
from dataclasses import replace

import numpy as np
import pytest

from kronos_model.bars.columns import CLOSE
from kronos_model.errors import InputError, TrainingDiverged
from kronos_model.evaluation.comparison import LAST_VALUE, SEASONAL, START, Evaluation, Scores, evaluate
from kronos_model.evaluation.naive import CloseForecast, last_value
from kronos_model.evaluation.scores import Improvement, one_bar_change
from kronos_model.evaluation.window_arrays import WindowArrays

LOOKBACK, HORIZON = 40, 6


def walks(num_windows: int = 12, seed: int = 0) -> WindowArrays:
    """Random walks around a different price each."""
    rng = np.random.default_rng(seed)
    shape = (num_windows, LOOKBACK + HORIZON)
    price = 10.0 ** rng.integers(0, 4, num_windows)
    closes = price[:, None] * (50 + rng.standard_normal(shape).cumsum(axis=1))
    bars = np.repeat(closes[..., None], 6, axis=2).astype(np.float32)
    wall = np.broadcast_to(np.arange(shape[1]).astype("datetime64[h]"), shape)
    return WindowArrays(bars, wall, LOOKBACK)


def perfect(windows, levels):
    future = windows.future_closes
    return CloseForecast(future, np.repeat(future[:, None], len(levels), axis=1))


def off_by(num_changes):
    """The last value, too high by some mean one-bar changes."""

    def forecaster(windows, levels):
        forecast = last_value(windows.past_closes, windows.horizon, levels)
        shift = num_changes * one_bar_change(windows.past_closes)[:, None]
        return CloseForecast(forecast.point + shift, forecast.quantiles + shift[..., None])

    return forecaster


def test_a_perfect_forecast_has_no_error_and_beats_all():
    evaluation = evaluate({"finetuned": perfect, START: off_by(5)}, walks(), season=8)
    assert evaluation.scores["finetuned"] == Scores(0, 0, 0, 0, 1, 0, 0)
    assert list(evaluation.improvements) == [START, LAST_VALUE, SEASONAL]
    assert set(evaluation.improvements.values()) == {Improvement(100, 100, 100)}
    assert not any("WORSE" in line for line in evaluation.verdict())


def test_the_verdict_begins_with_a_worse_result():
    lines = evaluate({"finetuned": off_by(5), START: perfect}, walks(), season=None).verdict()
    assert lines[0] == (
        "WORSE: on held-out candles this model forecasts worse than before finetuning and than repeating the "
        "last value."
    )
    assert "WORSE than before finetuning, which makes no error here." in lines
    assert any("% WORSE than repeating the last value (95 % interval" in line for line in lines)


def test_the_same_forecast_makes_no_clear_difference():
    lines = evaluate({"finetuned": off_by(0)}, walks(), season=None).verdict()
    expected = "0.0 % better than repeating the last value, perhaps by chance"
    assert any(line.startswith(expected) for line in lines)
    assert not any("WORSE" in line for line in lines)


def test_only_unscaled_scores_depend_on_the_price():
    windows = walks()
    scaled_up = replace(windows, bars=windows.bars * np.float32(1024))
    one, other = (evaluate({"m": off_by(2)}, each, season=8) for each in (windows, scaled_up))
    assert other.improvements["last_value"] == pytest.approx(one.improvements["last_value"])
    for name, scores in one.scores.items():
        for field in ("mase", "pinball_scaled", "width_80_scaled", "coverage_80"):
            assert getattr(other.scores[name], field) == pytest.approx(getattr(scores, field))
        for field in ("mae", "pinball", "width_80"):
            assert getattr(other.scores[name], field) == pytest.approx(1024 * getattr(scores, field))


def test_windows_at_a_high_price_do_not_decide_the_comparison_alone():
    """The model is perfect except for the one window with large prices."""
    windows = walks()
    bars = windows.bars.copy()
    bars[0] *= 1e6
    windows = replace(windows, bars=bars)

    def wrong_in_one(windows, levels):
        right, wrong = perfect(windows, levels), off_by(1)(windows, levels)
        is_wrong = np.arange(len(windows)) == 0
        return CloseForecast(
            np.where(is_wrong[:, None], wrong.point, right.point),
            np.where(is_wrong[:, None, None], wrong.quantiles, right.quantiles),
        )

    evaluation = evaluate({"m": wrong_in_one}, windows, season=None)
    assert evaluation.improvements[LAST_VALUE].outcome == "better"


def test_a_lookback_that_never_changes_counts_in_price_units_only():
    windows = walks()
    bars = windows.bars.copy()
    bars[2, :LOOKBACK, CLOSE] = 7
    evaluation = evaluate({"m": perfect}, replace(windows, bars=bars), season=8)
    assert (evaluation.num_windows, evaluation.num_constant) == (12, 1)
    assert np.isfinite(evaluation.scores[LAST_VALUE].mase)
    assert evaluation.verdict()[-1] == (
        "Windows not compared, as the close of their lookback never changes: 1."
    )

    bars[:, :LOOKBACK, CLOSE] = 7
    evaluation = evaluate({"m": perfect}, replace(windows, bars=bars), season=8)
    assert evaluation.improvements == {}
    assert evaluation.as_dict()["scores"]["m"]["mase"] is None
    assert evaluation.as_dict()["scores"][LAST_VALUE]["mae"] > 0


def test_without_a_season_the_seasonal_forecast_is_left_out_with_the_reason():
    evaluation = evaluate({"m": perfect}, walks(), season=LOOKBACK)
    assert list(evaluation.scores) == ["m", LAST_VALUE]
    assert evaluation.verdict()[-1] == (
        "Not compared with repeating the last season: a season of 40 bars needs a lookback of at least 50 "
        "bars, not 40."
    )


def test_overlapping_windows_do_not_count_as_many():
    windows = walks()
    assert evaluate({"m": perfect}, windows, season=None).improvements[LAST_VALUE].outcome == "better"
    grouped = replace(windows, groups=np.arange(len(windows)) // 4)
    evaluation = evaluate({"m": perfect}, grouped, season=None)
    assert evaluation.improvements[LAST_VALUE].outcome == "unclear"
    assert any(
        line.startswith("100.0 % better than repeating the last value on these windows; fewer than 6")
        for line in evaluation.verdict()
    )


def test_an_evaluation_is_json_even_if_numbers_are_not_finite():
    windows = walks(num_windows=2)
    content = evaluate({"m": off_by(1)}, windows, season=8).as_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["improvements"][LAST_VALUE]["low_percent"] is None
    assert content["improvements"][LAST_VALUE]["outcome"] == "unclear"
    assert content["verdict"][0].startswith("Pinball loss of the close ")


def test_a_forecast_that_is_not_finite_is_refused():
    def diverged(windows, levels):
        forecast = perfect(windows, levels)
        forecast.quantiles[3, 0, 1] = np.nan
        return forecast

    with pytest.raises(TrainingDiverged, match="'m' are not finite"):
        evaluate({"m": diverged}, walks(), season=None)


def test_invalid_evaluations_are_refused():
    with pytest.raises(InputError, match="at least one candidate"):
        evaluate({}, walks(), season=None)
    with pytest.raises(InputError, match="one window"):
        evaluate({"m": perfect}, walks(num_windows=0), season=None)
    with pytest.raises(InputError, match="'last_value' is the name of a naive forecast"):
        evaluate({LAST_VALUE: perfect}, walks(), season=None)


def judged(by: Improvement, coverage_80: float = 0.8) -> Evaluation:
    return Evaluation(
        judged="finetuned",
        num_windows=64,
        num_constant=0,
        lookback=400,
        horizon=48,
        season=48,
        why_no_seasonal=None,
        scores={"finetuned": Scores(0.04, 1.5, 0.01234, 0.5678, coverage_80, 0.1, 4)},
        improvements={START: by},
    )


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        (Improvement(4.11, 2, 6.1), "4.1 % better than before finetuning (95 % interval 2.0 to 6.1 %)."),
        (Improvement(-1.3, -2.2, -0.4), "1.3 % WORSE than before finetuning (95 % interval 0.4 to 2.2 %)."),
        (
            Improvement(0.5, -1, 2),
            "0.5 % better than before finetuning, perhaps by chance "
            "(95 % interval from 1.0 % worse to 2.0 % better).",
        ),
        (
            Improvement(-7, np.nan, np.nan),
            "7.0 % worse than before finetuning on these windows; fewer than 6 separate windows cannot show "
            "whether by chance.",
        ),
    ],
)
def test_the_verdict_says_better_worse_or_unclear(by, sentence):
    lines = judged(by).verdict()
    figures = (
        "Pinball loss of the close 0.01234, 0.568 times the lookback's mean change from bar to bar, over 64 "
        "windows of 48 bars."
    )
    loud = "WORSE: on held-out candles this model forecasts worse than before finetuning."
    assert lines == [
        *([loud] if by.outcome == "worse" else []),
        figures,
        sentence,
        "The 80 % interval held 80.0 % of the closes.",
    ]


def test_the_verdict_names_a_misleading_interval():
    by = Improvement(1, 0.5, 2)
    assert judged(by, 0.613).verdict()[-1] == (
        "The 80 % interval held 61.3 % of the closes: it is too narrow."
    )
    assert judged(by, 0.95).verdict()[-1] == "The 80 % interval held 95.0 % of the closes: it is too wide."
