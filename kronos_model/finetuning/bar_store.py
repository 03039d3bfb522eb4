"""All bars in one array, with their time features. All datasets share it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import COLUMNS, TIME_FEATURES, FloatArray, time_features
from kronos_model.bars.instrument import Instrument

CHUNK_BARS: Final = 65_536
"""Bars whose time features are computed at once, since the computation is in int64."""


class BarStore:
    """The N bars of I instruments, in the order of the instruments.

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
        self.first: NDArray[np.int64] = np.cumsum(self.num_bars) - self.num_bars
        total = int(self.num_bars.sum())
        self.bars: FloatArray = np.empty((total, len(COLUMNS)), dtype=np.float32)
        self.stamps: NDArray[np.int8] = np.empty((total, len(TIME_FEATURES)), dtype=np.int8)
        for each, first in zip(instruments, self.first.tolist(), strict=True):
            self.bars[first : first + len(each)] = each.bars
            for start in range(0, len(each), CHUNK_BARS):
                features = time_features(each.wall[start : start + CHUNK_BARS])
                self.stamps[first + start : first + start + len(features)] = features
        self.bars.flags.writeable = False  # all datasets share them
        self.stamps.flags.writeable = False
        self.instruments: tuple[Instrument, ...] = tuple(
            replace(each, bars=self.bars[first : first + len(each)])
            for each, first in zip(instruments, self.first.tolist(), strict=True)
        )
