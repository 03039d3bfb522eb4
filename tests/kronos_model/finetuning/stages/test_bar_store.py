import numpy as np
import pytest

from kronos_model.bars.columns import Instrument, time_features
from kronos_model.evaluation.windows import Windows
from kronos_model.finetuning.config_parts import LookbackRange
from kronos_model.finetuning.stages import batches
from kronos_model.finetuning.stages.batches import BarStore, WindowDataset


def instrument(name: str, num_bars: int) -> Instrument:
    bars = np.random.default_rng(num_bars).random((num_bars, 6), dtype=np.float32)
    wall = np.datetime64("2024-01-30T22:17:00") + np.arange(num_bars) * np.timedelta64(901, "s")
    return Instrument(name, bars, wall, wall, is_aware=False)


SOME = [instrument("A", 40), instrument("B", 0), instrument("C", 301)]


def test_bars_and_time_features_are_in_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "CHUNK_BARS", 100)

    store = BarStore(SOME)

    assert (store.bars.dtype, store.stamps.dtype) == (np.float32, np.int8)
    assert (store.first.tolist(), store.num_bars.tolist()) == ([0, 40, 40], [40, 0, 301])
    np.testing.assert_array_equal(store.bars, np.concatenate([each.bars for each in SOME]))
    np.testing.assert_array_equal(store.stamps, np.concatenate([time_features(each.wall) for each in SOME]))


def test_its_instruments_are_views_of_the_store() -> None:
    store = BarStore(SOME)

    for kept, given in zip(store.instruments, SOME, strict=True):
        assert (kept.name, kept.is_aware, kept.wall is given.wall) == (given.name, given.is_aware, True)
        np.testing.assert_array_equal(kept.bars, given.bars)
        assert kept.bars.base is store.bars
        assert not kept.bars.flags.writeable


def test_datasets_do_not_copy_the_store() -> None:
    store = BarStore(SOME)
    windows = Windows(np.array([2, 0], dtype=np.int32), np.array([7, 3]))

    first, second = (WindowDataset(store, windows, LookbackRange(min=12, max=12), 5, 5.0) for _ in range(2))

    held = [value for value in vars(first).values() if isinstance(value, np.ndarray)]
    assert sum(each.nbytes for each in held) < 1000
    assert vars(first)["_store"] is vars(second)["_store"] is store


def test_no_instruments_make_an_empty_store() -> None:
    store = BarStore([])

    assert (store.bars.shape, store.stamps.shape, store.instruments) == ((0, 6), (0, 5), ())
