"""The bars of one instrument."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kronos_model.bars.columns import FloatArray


@dataclass(frozen=True, eq=False)
class Instrument:
    """Bars of one instrument, ascending strictly in time.

    Attributes:
        bars: (N, 6) float32, columns as ``COLUMNS``, filled in as ``to_bars`` does.
        wall: the wall clock as written, the source of the time features, (N,) datetime64[s].
        instants: in UTC if offsets or zones are known, else the wall clock, (N,) datetime64[s]; for order and
            cuts only.
        is_aware: whether offsets or zones are known.
    """

    name: str
    bars: FloatArray
    wall: NDArray[np.datetime64]
    instants: NDArray[np.datetime64]
    is_aware: bool

    def __len__(self) -> int:
        return len(self.bars)
