"""The bundled checkpoint keeps its promises on instruments that it has not seen."""

import numpy as np
import pytest

from kronos_model.bars.columns import to_bars
from kronos_model.bundled.held_out import HeldOut, compare_held_out, held_out_windows
from kronos_model.evaluation.comparison import LAST_VALUE, SEASONAL

# Fewer windows than for the figures in the checkpoint's metadata, which take minutes:
# ``python -m kronos_model.bundled.held_out`` computes those.
NUM_SEEDS, WINDOWS_PER_SEED, SAMPLE_COUNT = 4, 16, 16


@pytest.fixture(scope="module")
def held_out() -> HeldOut:
    # Other seeds than those of the figures in the checkpoint's metadata.
    return compare_held_out(
        seeds=range(100, 100 + NUM_SEEDS), windows_per_seed=WINDOWS_PER_SEED, sample_count=SAMPLE_COUNT
    )


@pytest.mark.parametrize("naive", [LAST_VALUE, SEASONAL])
def test_beats_the_naive_forecasts(held_out: HeldOut, naive: str) -> None:
    by = held_out.pooled.improvements[naive]
    assert by.mean >= 3
    assert by.low > 0
    assert held_out.pooled.num_windows == NUM_SEEDS * WINDOWS_PER_SEED
    assert len(held_out.by_seed[naive]) == NUM_SEEDS


def test_its_80_percent_interval_contains_about_80_percent(held_out: HeldOut) -> None:
    (name,) = held_out.pooled.scores.keys() - {LAST_VALUE, SEASONAL}
    # A wide range: the ends of an interval of 16 samples are rough.
    assert 0.6 <= held_out.pooled.scores[name].coverage_80 <= 0.9


def test_each_window_has_its_own_instrument() -> None:
    one, again, other = (held_out_windows(seed, 3, 8, 4) for seed in (0, 0, 1))
    assert one.bars.shape == (
        3,
        12,
        len(to_bars({name: [1.0] for name in ("open", "high", "low", "close")})[0]),
    )
    assert np.array_equal(one.bars, again.bars)
    assert np.array_equal(one.wall, again.wall)
    closes = np.concatenate([one.future_closes, other.future_closes])
    assert len(np.unique(closes[:, 0])) == 6
