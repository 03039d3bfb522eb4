"""Windows as a torch dataset: scaled bars and their time features, in whole batches."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from kronos_model.bars.columns import STD_EPSILON, FloatArray
from kronos_model.evaluation.window_arrays import Windows
from kronos_model.finetuning.bar_store import BarStore


class WindowDataset(Dataset[dict[str, torch.Tensor]]):
    """Windows of L = lookback + pred_len bars, each scaled by its own lookback and clipped to ±clip.

    ``windows`` refers to the instruments of ``store``. The dataset makes whole batches, so a loader needs a
    ``collate_fn`` that returns its argument.
    """

    def __init__(self, store: BarStore, windows: Windows, lookback: int, pred_len: int, clip: float) -> None:
        index = windows.instrument_index
        if np.any(windows.start < 0) or np.any(windows.start + lookback + pred_len > store.num_bars[index]):
            raise ValueError("a window reaches beyond the bars of its instrument")
        self._store = store
        self._start: NDArray[np.int64] = store.first[index] + windows.start  # (W,)
        self._lookback = lookback
        self._steps = np.arange(lookback + pred_len)
        self._clip = clip

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One window without the batch dimension."""
        return {name: batch[0] for name, batch in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """A batch: ``x`` (B, L, 6) float32, scaled and clipped, and ``stamp`` (B, L, 5) int64."""
        rows = self._start[np.asarray(indices, dtype=np.int64)][:, None] + self._steps  # (B, L)
        x = scale(self._store.bars[rows], self._lookback, self._clip)
        return {
            "x": torch.from_numpy(x),
            "stamp": torch.from_numpy(self._store.stamps[rows].astype(np.int64)),
        }


def scale(bars: FloatArray, lookback: int, clip: float) -> FloatArray:
    """Scale and clip bars (B, L, 6) in place, each window as ``Scaling`` of its lookback does."""
    # Contiguous columns, as in Scaling.fit, give the same order of summation.
    past = np.ascontiguousarray(bars[:, :lookback].transpose(0, 2, 1))  # (B, 6, lookback)
    mean, std = past.mean(axis=-1), past.std(axis=-1)  # (B, 6)
    bars -= mean[:, None]
    bars /= std[:, None] + np.float32(STD_EPSILON)
    return np.clip(bars, -clip, clip, out=bars)
