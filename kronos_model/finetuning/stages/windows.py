"""Windows as a torch dataset: scaled bars and their time features, in whole batches."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from kronos_model.bars.columns import COLUMNS, TIME_FEATURES, FloatArray, Instrument, Scaling, time_features
from kronos_model.evaluation.windows import Windows
from kronos_model.finetuning.config_parts import LookbackRange

CHUNK_BARS: Final = 65_536
"""Bars whose time features are computed at once, since the computation is in int64."""


class BarStore:
    """The N bars of I instruments in one array, in the order of the instruments. All datasets share it.

    Attributes:
        bars: (N, 6) float32.
        stamps: their time features, (N, 5) int8.
        first: each instrument's first row, (I,) int64.
        num_bars: each instrument's number of bars, (I,) int64.
        instruments: copies of the given instruments whose ``bars`` are views of the store. Use them instead
            of the given ones, so that bars are in memory only once.
    """

    def __init__(self, instruments: Sequence[Instrument]) -> None:
        self.num_bars: NDArray[np.int64] = np.array([len(each) for each in instruments], dtype=np.int64)
        ends = np.cumsum(self.num_bars)
        self.first: NDArray[np.int64] = ends - self.num_bars
        total = int(self.num_bars.sum())
        self.bars: FloatArray = np.empty((total, len(COLUMNS)), dtype=np.float32)
        self.stamps: NDArray[np.int8] = np.empty((total, len(TIME_FEATURES)), dtype=np.int8)
        kept = []
        for each, first, end in zip(instruments, self.first.tolist(), ends.tolist(), strict=True):
            bars, stamps = self.bars[first:end], self.stamps[first:end]
            bars[:] = each.bars
            for start in range(0, len(each), CHUNK_BARS):
                chunk = slice(start, start + CHUNK_BARS)
                stamps[chunk] = time_features(each.wall[chunk])
            bars.flags.writeable = False
            kept.append(replace(each, bars=bars))
        self.bars.flags.writeable = self.stamps.flags.writeable = False  # all datasets share them
        self.instruments: tuple[Instrument, ...] = tuple(kept)


class WindowDataset(Dataset[dict[str, torch.Tensor]]):
    """Windows of L = lookback + pred_len bars, each scaled by its own lookback and clipped to ±clip.

    ``windows`` refers to the instruments of ``store``. The dataset makes whole batches, so a loader needs a
    ``collate_fn`` that returns its argument. The windows of a batch have one lookback, drawn evenly on a
    logarithmic scale; the bars after it stay the same. The indices of the windows alone decide the draw,
    so a resumed run draws the same.
    """

    def __init__(
        self, store: BarStore, windows: Windows, lookback: LookbackRange, pred_len: int, clip: float
    ) -> None:
        index, longest = windows.instrument_index, lookback.max + pred_len
        if np.any(windows.start < 0) or np.any(windows.start + longest > store.num_bars[index]):
            raise ValueError("a window reaches beyond the bars of its instrument")
        self._store = store
        self._start: NDArray[np.int64] = store.first[index] + windows.start  # (W,)
        self._lookback = lookback
        self._steps = np.arange(longest)
        self._clip = clip

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One window without the batch dimension."""
        return {name: batch[0] for name, batch in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """A batch: ``x`` (B, L, 6) float32, scaled and clipped, and ``stamp`` (B, L, 5) int64."""
        lookback = self._lookback_of(indices)
        steps = self._steps[self._lookback.max - lookback :]
        rows = self._start[np.asarray(indices, dtype=np.int64)][:, None] + steps  # (B, L)
        bars = self._store.bars[rows]  # (B, L, 6)
        x = Scaling.fit(bars[:, :lookback]).apply(bars, self._clip)
        return {
            "x": torch.from_numpy(x),
            "stamp": torch.from_numpy(self._store.stamps[rows].astype(np.int64)),
        }

    def _lookback_of(self, indices: Sequence[int]) -> int:
        shortest, longest = self._lookback.min, self._lookback.max
        if shortest == longest:
            return longest
        share = np.random.default_rng(indices).random()
        lookback: float = shortest * (longest / shortest) ** share
        return round(lookback)
