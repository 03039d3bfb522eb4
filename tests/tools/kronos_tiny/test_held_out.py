"""The bundled checkpoint keeps its promises on instruments that it has not seen."""

from typing import Any

import numpy as np
import pytest

from kronos_model.evaluation.naive import LAST_VALUE
from tools.kronos_tiny.held_out import LOOKBACKS, NAME, compare_held_out, held_out_windows

# Fewer windows than for the figures in the checkpoint's metadata, which take minutes:
# ``python -m tools.kronos_tiny.held_out`` computes those.
NUM_WINDOWS, SAMPLE_COUNT = 32, 16
SOME_LOOKBACKS = (LOOKBACKS[0], LOOKBACKS[-1])


@pytest.fixture(scope="module")
def held_out() -> dict[str, Any]:
    # Another seed than that of the figures in the checkpoint's metadata.
    return compare_held_out(
        seed=100, num_windows=NUM_WINDOWS, lookbacks=SOME_LOOKBACKS, sample_count=SAMPLE_COUNT
    )


@pytest.mark.parametrize("lookback", SOME_LOOKBACKS)
def test_it_is_not_worse_than_the_last_value_at_any_lookback(held_out: dict[str, Any], lookback: int) -> None:
    report = held_out[str(lookback)]
    assert report["num_windows"] == NUM_WINDOWS
    assert report["models"][NAME]["against"][LAST_VALUE]["verdict"] != "worse"


@pytest.mark.parametrize("lookback", SOME_LOOKBACKS)
def test_its_80_percent_interval_contains_about_80_percent(held_out: dict[str, Any], lookback: int) -> None:
    # A wide range: there are few windows, and after the longest lookback intervals are a little too wide.
    assert 0.7 <= held_out[str(lookback)]["models"][NAME]["scores"]["coverage"]["0.8"] <= 0.93


def test_all_lookbacks_forecast_the_same_bars_of_instruments_of_their_own() -> None:
    short, longer, other = (held_out_windows(*case, 4) for case in ((0, 3, 8), (0, 3, 16), (1, 3, 8)))
    assert short.bars.shape == (3, 12, 6)
    assert np.array_equal(short.bars, longer.bars[:, 8:])
    assert np.array_equal(short.wall, longer.wall[:, 8:])
    assert len(np.unique(np.concatenate([short.future_closes, other.future_closes])[:, 0])) == 6
