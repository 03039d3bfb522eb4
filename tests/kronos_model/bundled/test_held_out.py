"""The bundled checkpoint keeps its promises on instruments that it has not seen."""

import numpy as np
import pytest

from kronos_model.bundled.held_out import LOOKBACKS, NAME, HeldOut, compare_held_out, held_out_windows
from kronos_model.evaluation.comparison import LAST_VALUE

# Fewer windows than for the figures in the checkpoint's metadata, which take minutes:
# ``python -m kronos_model.bundled.held_out`` computes those.
NUM_WINDOWS, SAMPLE_COUNT = 32, 16
SOME_LOOKBACKS = (LOOKBACKS[0], LOOKBACKS[-1])


@pytest.fixture(scope="module")
def held_out() -> HeldOut:
    # Another seed than that of the figures in the checkpoint's metadata.
    return compare_held_out(
        seed=100, num_windows=NUM_WINDOWS, lookbacks=SOME_LOOKBACKS, sample_count=SAMPLE_COUNT
    )


@pytest.mark.parametrize("lookback", SOME_LOOKBACKS)
def test_it_is_not_worse_than_the_last_value_at_any_lookback(held_out: HeldOut, lookback: int) -> None:
    evaluation = held_out.by_lookback[lookback]
    assert evaluation.num_windows == NUM_WINDOWS
    assert evaluation.improvements[LAST_VALUE].outcome != "worse"


@pytest.mark.parametrize("lookback", SOME_LOOKBACKS)
def test_its_80_percent_interval_contains_about_80_percent(held_out: HeldOut, lookback: int) -> None:
    # A wide range: there are few windows, and after the longest lookback intervals are a little too wide.
    assert 0.7 <= held_out.by_lookback[lookback].scores[NAME].coverage_80 <= 0.93


def test_all_lookbacks_forecast_the_same_bars_of_instruments_of_their_own() -> None:
    one, longer, other = (held_out_windows(*case, 4) for case in ((0, 3, 8), (0, 3, 16), (1, 3, 8)))
    assert one.bars.shape == (3, 12, 6)
    assert np.array_equal(one.bars, longer.bars[:, 8:])
    assert np.array_equal(one.wall, longer.wall[:, 8:])
    assert len(np.unique(np.concatenate([one.future_closes, other.future_closes])[:, 0])) == 6
