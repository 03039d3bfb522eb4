from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from kronos_model.bars.columns import FloatArray, Instrument, Scaling, time_features
from kronos_model.evaluation.windows import Windows
from kronos_model.finetuning.config_parts import LookbackRange
from kronos_model.finetuning.stages import batches
from kronos_model.finetuning.stages.batches import BarStore, WindowDataset, seed_step

LOOKBACK, PRED_LEN = 12, 5
LENGTH = LOOKBACK + PRED_LEN


def instrument(num_bars: int, seed: int, bars: FloatArray | None = None) -> Instrument:
    rng = np.random.default_rng(seed)
    if bars is None:
        prices = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, (num_bars, 4)), axis=0))
        volumes = rng.lognormal(8, 2, (num_bars, 2))
        bars = np.concatenate([prices, volumes], axis=1).astype(np.float32)
    start = np.datetime64("2023-12-30T22:00:00") + seed * np.timedelta64(7, "D")
    wall = start + np.arange(num_bars) * np.timedelta64(900, "s")
    return Instrument(f"{seed}", bars, wall, wall, False)


SOME = [instrument(40, 0), instrument(25, 1), instrument(600, 2)]


def all_windows(instruments: list[Instrument], length: int = LENGTH) -> Windows:
    starts = [np.arange(len(each) - length + 1) for each in instruments]
    index = np.repeat(np.arange(len(starts), dtype=np.int32), [len(each) for each in starts])
    return Windows(index, np.concatenate(starts))


def dataset(
    instruments: list[Instrument], windows: Windows | None = None, shortest: int = LOOKBACK
) -> WindowDataset:
    windows = all_windows(instruments) if windows is None else windows
    lookback = LookbackRange(min=shortest, max=LOOKBACK)
    return WindowDataset(BarStore(instruments), windows, lookback, PRED_LEN, 5)


def test_a_batch_is_scaled_like_each_forecast() -> None:
    windows = all_windows(SOME)
    order = np.random.default_rng(0).permutation(len(windows))[:60].tolist()

    batch = dataset(SOME, windows).__getitems__(order)

    assert (batch["x"].shape, batch["x"].dtype) == ((60, LENGTH, 6), torch.float32)
    assert (batch["stamp"].shape, batch["stamp"].dtype) == ((60, LENGTH, 5), torch.int64)
    assert batch["x"].abs().max() == 5, "nothing is clipped"
    for row, window in enumerate(order):
        each, start = SOME[windows.instrument_index[window]], windows.start[window]
        bars = each.bars[start : start + LENGTH]
        np.testing.assert_array_equal(batch["x"][row], Scaling.fit(bars[:LOOKBACK]).apply(bars, 5))
        np.testing.assert_array_equal(batch["stamp"][row], time_features(each.wall[start : start + LENGTH]))


def test_each_batch_has_a_lookback_of_its_own_that_its_windows_decide() -> None:
    windows = all_windows(SOME)
    varied = dataset(SOME, windows, shortest=3)
    lookbacks = []
    for first in range(0, 200, 4):
        order = [first, first + 1, first + 2]
        batch = varied.__getitems__(order)
        assert torch.equal(batch["x"], varied.__getitems__(order)["x"])
        lookbacks.append(batch["x"].shape[1] - PRED_LEN)
        each, end = SOME[windows.instrument_index[first]], windows.start[first] + LENGTH
        bars = each.bars[end - PRED_LEN - lookbacks[-1] : end]
        np.testing.assert_array_equal(batch["x"][0], Scaling.fit(bars[: lookbacks[-1]]).apply(bars, 5))
    assert set(lookbacks) == set(range(3, LOOKBACK + 1))
    assert np.median(lookbacks) < (3 + LOOKBACK) / 2, "they are not even on a logarithmic scale"


@pytest.mark.parametrize("lookback", [1, 7, 128, 400, 2048])
def test_long_sums_equal_those_of_a_forecast(lookback: int) -> None:
    bars = instrument(lookback + 3, 5).bars
    several = np.stack([bars, bars * 1000, np.ldexp(bars, -40)])

    scaled = Scaling.fit(several[:, :lookback]).apply(several, 5)

    for row, each in enumerate(several):
        np.testing.assert_array_equal(scaled[row], Scaling.fit(each[:lookback]).apply(each, 5))


@pytest.mark.filterwarnings("error")
def test_a_bar_far_larger_than_its_lookback_is_clipped() -> None:
    bars = np.ldexp(SOME[0].bars, -140)
    bars[LOOKBACK:] = 1e17

    assert (dataset([instrument(40, 0, bars)])[0]["x"][LOOKBACK:] == 5).all()


def as_it_is(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return batch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_takes_whole_batches(num_workers: int) -> None:
    windows = dataset(SOME[:2])
    loader = DataLoader(
        windows,
        batch_sampler=BatchSampler(SequentialSampler(windows), 10, drop_last=False),
        collate_fn=as_it_is,
        num_workers=num_workers,
    )

    batches = list(loader)

    assert [len(batch["x"]) for batch in batches] == [10, 10, 10, 3]
    whole = windows.__getitems__(list(range(33)))
    for name in ("x", "stamp"):
        assert torch.equal(torch.cat([batch[name] for batch in batches]), whole[name])
    assert torch.equal(windows[3]["x"], whole["x"][3])


def test_a_batch_is_a_copy() -> None:
    windows = dataset(SOME)
    first = windows.__getitems__([0])
    kept = {name: tensor.clone() for name, tensor in first.items()}
    for tensor in first.values():
        tensor.zero_()

    assert all(torch.equal(kept[name], tensor) for name, tensor in windows.__getitems__([0]).items())


@pytest.mark.parametrize("start", [-1, 24])
def test_windows_that_reach_into_another_instrument_are_refused(start: int) -> None:
    with pytest.raises(ValueError, match="beyond the bars"):
        dataset(SOME, Windows(np.array([0], dtype=np.int32), np.array([start])))


def test_a_store_has_all_bars_and_time_features_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "CHUNK_BARS", 100)
    some = [instrument(40, 0), instrument(0, 1), instrument(301, 2)]

    store = BarStore(some)

    assert (store.bars.dtype, store.stamps.dtype) == (np.float32, np.int8)
    assert (store.first.tolist(), store.num_bars.tolist()) == ([0, 40, 40], [40, 0, 301])
    np.testing.assert_array_equal(store.bars, np.concatenate([each.bars for each in some]))
    np.testing.assert_array_equal(store.stamps, np.concatenate([time_features(each.wall) for each in some]))
    for kept, original in zip(store.instruments, some, strict=True):
        assert (kept.name, kept.is_aware, kept.wall is original.wall) == (
            original.name,
            original.is_aware,
            True,
        )
        assert kept.bars.base is store.bars
        assert not kept.bars.flags.writeable
    windows = Windows(np.array([2, 0], dtype=np.int32), np.array([7, 3]))
    held = vars(WindowDataset(store, windows, LookbackRange(min=12, max=12), 5, 5.0))
    assert held["_store"] is store
    assert sum(value.nbytes for value in held.values() if isinstance(value, np.ndarray)) < 1000


def test_no_windows_and_no_instruments_are_empty() -> None:
    nothing = Windows(np.array([], dtype=np.int32), np.array([], dtype=np.int64))

    assert len(dataset([], nothing)) == len(dataset(SOME, nothing)) == 0
    assert BarStore([]).bars.shape == (0, 6)


def test_the_seed_goes_to_the_gpu_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in PyTorch, ``manual_seed`` seeds the current device, which is the first one."""
    current, seeds = [0], {}

    @contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        current.append(chosen.index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: seeds.update({current[-1]: seed}))
    with torch.random.fork_rng(devices=[]):
        seed_step(5, torch.device("cuda", 1))
        assert seeds == {1: 5}
        assert torch.initial_seed() == 5
