import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kronos_model.bars.columns import Instrument
from kronos_model.errors import FinetuningConfigError, TrainingDataError
from kronos_model.evaluation.windows import Windows, spread
from kronos_model.finetuning.advice import split_warnings, why_not_compared
from kronos_model.finetuning.config import EvaluationConfig, FinetuneConfig, parse_config
from kronos_model.finetuning.config_parts import DataConfig
from kronos_model.finetuning.split import PARTS, Split, split_windows

START = np.datetime64("2024-01-01T00:00:00")


def instrument(
    minutes: NDArray[np.int64] | list[int], name: str = "A", offset_h: int | None = None
) -> Instrument:
    """Bars at these minutes, ascending."""
    instants = START + np.asarray(minutes, dtype=np.int64) * np.timedelta64(60, "s")
    wall = instants + np.timedelta64(offset_h or 0, "h")
    bars = np.ones((len(instants), 6), dtype=np.float32)
    return Instrument(name, bars, wall, instants, offset_h is not None)


def config(**fields: Any) -> DataConfig:
    return DataConfig(path="x", **({"lookback": 3, "pred_len": 2} | fields))


def bars_of(split: Split, part: str, bars: range) -> set[tuple[int, int]]:
    """These bars of the part's windows, by instrument."""
    windows: Windows = getattr(split, part)
    rows = windows.start[:, None] + np.asarray(bars)
    return {
        (int(each), row)
        for each, window in zip(windows.instrument_index, rows.tolist(), strict=True)
        for row in window
    }


@st.composite
def markets(draw: st.DrawFn) -> list[Instrument]:
    """Instruments that begin, end and pause at different times."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    some = []
    for index in range(draw(st.integers(1, 4))):
        steps = rng.choice([1, 1, 1, 5, 60], size=draw(st.integers(0 if some else 60, 120)))
        some.append(instrument(rng.integers(0, 200) + np.cumsum([0, *steps]), f"{index}"))
    return some


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_no_bar_after_a_lookback_is_in_windows_of_an_earlier_part(data: st.DataObject) -> None:
    some = data.draw(markets())
    lookback, pred_len = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 4))
    plan = config(
        lookback=lookback,
        pred_len=pred_len,
        stride=data.draw(st.integers(1, 4)),
        gap=data.draw(st.integers(0, 6)),
        validation_fraction=data.draw(st.sampled_from([0.05, 0.3])),
        test_fraction=data.draw(st.sampled_from([0, 0.1, 0.3])),
    )
    try:
        split = split_windows(some, plan)
    except TrainingDataError:
        assume(False)

    seen = {part: bars_of(split, part, range(lookback, plan.window)) for part in PARTS}
    seen["train"] = bars_of(split, "train", range(plan.window))
    for index, row in bars_of(split, "validation", range(plan.window)):
        assert 0 <= row < len(some[index])
    newest: dict[str, np.datetime64] = {}
    for part, bars in seen.items():
        times = [some[index].instants[row] for index, row in bars]
        assert all(0 <= row < len(some[index]) for index, row in bars)
        if times:
            assert all(min(times) > time for time in newest.values()), "a part before it is not over"
            newest[part] = max(times)
    for index, each in enumerate(some):
        for earlier, later in (("train", "validation"), ("train", "test"), ("validation", "test")):
            before = [row for owner, row in seen[earlier] if owner == index]
            after = [row for owner, row in seen[later] if owner == index]
            if before and after:
                assert min(after) - max(before) > plan.gap
        assert len(each) >= len({row for part in PARTS for owner, row in seen[part] if owner == index})
    assert sum(split.num_bars.values()) + split.num_left_out == sum(map(len, some))


def test_every_window_that_fits_occurs_once() -> None:
    split = split_windows(
        [instrument(range(100)), instrument(range(50, 100), "B")], config(gap=2, validation_fraction=0.2)
    )

    # Of the 150 bars of both, validation begins behind 105, at minute 77, the test behind 135, at minute 92.
    assert split.cuts == {"validation": "2024-01-01T01:17:00", "test": "2024-01-01T01:32:00"}
    assert split.train.instrument_index.tolist() == [0] * 73 + [1] * 23
    assert split.train.start.tolist() == [*range(73), *range(23)]
    assert split.train.start.dtype == np.int64
    assert split.train.instrument_index.dtype == np.int32
    assert split.validation.start.tolist() == [*range(76, 88), *range(26, 38)]
    assert split.test.start.tolist() == [*range(91, 96), *range(41, 46)]
    assert split.num_bars == {"train": 77 + 27, "validation": 13 + 13, "test": 6 + 6}
    assert split.num_left_out == 8


@pytest.mark.parametrize("stride", [1, 2, 7])
def test_windows_begin_stride_bars_apart(stride: int) -> None:
    split = split_windows([instrument(range(100))], config(stride=stride))

    assert split.train.start.tolist() == list(range(0, 76, stride))
    assert split.validation.start.tolist() == list(range(77, 86, stride))
    assert split.test.start.tolist() == list(range(87, 96, stride))


def test_the_test_part_may_be_left_out() -> None:
    split = split_windows([instrument(range(100))], config(validation_fraction=0.1, test_fraction=0))

    assert (len(split.train), split.validation.start[0], len(split.test)) == (86, 87, 0)
    assert split.cuts == {"validation": "2024-01-01T01:30:00", "test": None}
    assert split.num_left_out == 0


def test_the_test_part_may_be_too_short_for_a_window() -> None:
    split = split_windows([instrument(range(100))], config(test_fraction=0.01, validation_fraction=0.2))

    assert len(split.test) == 0
    assert split.as_dict()["num_windows"] == {"train": 75, "validation": 19, "test": 0}
    assert json.loads(json.dumps(split.as_dict())) == split.as_dict()


def test_cuts_may_be_given() -> None:
    cuts = {"validation_from": "2024-01-01 00:40", "test_from": "2024-01-01T01:00:00"}
    split = split_windows([instrument(range(100))], config(gap=0, **cuts))

    assert split.train.start[-1] == 35
    assert split.validation.start[[0, -1]].tolist() == [37, 55]
    assert split.test.start[0] == 57


def test_cuts_are_instants_if_the_data_has_offsets() -> None:
    some = [instrument(range(100), offset_h=8), instrument(range(100), "B", offset_h=-5)]
    cuts = {"validation_from": "2024-01-01T08:40+08:00", "test_from": "2023-12-31T20:00-05:00"}
    split = split_windows(some, config(gap=0, **cuts))

    assert split.validation.start[split.validation.instrument_index == 1][0] == 37
    assert split.cuts == {"validation": "2024-01-01T00:40:00+00:00", "test": "2024-01-01T01:00:00+00:00"}


@pytest.mark.parametrize(
    ("offset_h", "cuts", "field"),
    [
        (8, ("2024-01-01 00:40", "2024-01-01 00:50"), "data.validation_from"),
        (None, ("2024-01-01T00:40", "2024-01-01T00:50Z"), "data.test_from"),
        (None, ("soon", "2024-01-01T00:50"), "data.validation_from"),
        (None, ("2024-01-01T00:50", "2024-01-01T00:50"), "data.test_from"),
    ],
)
def test_invalid_cuts_are_refused(offset_h: int | None, cuts: tuple[str, str], field: str) -> None:
    with pytest.raises(FinetuningConfigError) as caught:
        split_windows(
            [instrument(range(100), offset_h=offset_h)], config(validation_from=cuts[0], test_from=cuts[1])
        )

    assert caught.value.field == field


def test_too_few_bars_to_train_on() -> None:
    with pytest.raises(
        TrainingDataError, match=r"at most 32 bars before .*T00:32:00.* 50 \+ pred_len 2 = 52:"
    ):
        split_windows([instrument(range(40))], config(lookback=50))
    with pytest.raises(TrainingDataError, match="at most 0 bars"):
        split_windows([], config())


def test_too_few_bars_to_validate_on() -> None:
    with pytest.raises(TrainingDataError, match=r"at most 1 bars .* a gap of 5, .* 2 there") as caught:
        split_windows([instrument(range(60))], config(gap=5))
    assert caught.value.field == "data.validation_fraction"

    with pytest.raises(TrainingDataError) as caught:
        split_windows(
            [instrument(range(60))], config(validation_from="2024-01-01T00:59", test_from="2025-01-01T00:00")
        )
    assert caught.value.field == "data.validation_from"


@pytest.mark.parametrize("num_bars", [500, 1000, 2500])
def test_daily_candles_of_ordinary_length_fit_the_documented_example(num_bars: int) -> None:
    text = Path("docs/use/finetuning.md").read_text(encoding="utf-8")
    example = yaml.safe_load(text.partition("```yaml")[2].partition("```")[0])
    split = split_windows([instrument(np.arange(num_bars) * 1440)], parse_config(example).data)

    assert min(split.as_dict()["num_windows"].values()) >= 20


def warnings(some: list[Instrument], **fields: Any) -> list[str]:
    evaluation = fields.pop("evaluation", {})
    plan = FinetuneConfig(data=config(**fields), evaluation=EvaluationConfig(**evaluation))
    return split_warnings(split_windows(some, plan.data), some, plan)


def test_what_weakens_a_comparison_is_known_before_training() -> None:
    ends_early = instrument(range(60), "B")
    assert warnings([instrument(range(200))]) == []

    (few,) = warnings([instrument(range(100))])
    assert "5 separate stretches of 2 bars, and 6 are needed, about 12 bars to test on (there are 10)" in few
    (none,) = warnings([instrument(range(100))], test_fraction=0.01)
    assert none.startswith("No comparison will follow training: a window needs 2 bars in the test part and 3")
    (untested,) = warnings([instrument(range(200)), ends_early])
    assert untested.startswith("1 of 2 instruments have no window to test on, which needs 2 bars from 2024-")
    assert untested.endswith(": B.")
    untrained, *_ = warnings([instrument(range(200)), instrument(range(3), "C\x1b")])
    assert untrained.endswith(
        "have no window to train on, which needs 5 bars before 2024-01-01T02:39:00: C�."
    )


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"evaluation": {"windows": 0}}, "evaluation.windows is 0"),
        ({"test_fraction": 0}, "data.test_fraction is 0"),
    ],
)
def test_a_comparison_that_is_not_wanted_is_not_missed(wish: dict[str, Any], reason: str) -> None:
    some = [instrument(range(100))]
    assert warnings(some, **wish) == []
    evaluation = EvaluationConfig(**wish.pop("evaluation", {}))
    plan = FinetuneConfig(data=config(**wish), evaluation=evaluation)
    assert why_not_compared(split_windows(some, plan.data), plan) == reason


@given(total=st.integers(0, 200), most=st.integers(0, 250))
def test_spread_takes_at_most_the_given_number_evenly(total: int, most: int) -> None:
    windows = Windows(np.arange(total, dtype=np.int32), np.arange(total))

    chosen = spread(windows, most).start

    assert len(chosen) == min(total, most)
    np.testing.assert_array_equal(chosen, spread(windows, most).instrument_index)
    if len(chosen) > 1:
        steps = np.diff(chosen)
        assert steps.min() >= 1
        assert steps.max() - steps.min() <= 1
        assert abs(chosen[0] - (total - 1 - chosen[-1])) <= steps.max()
