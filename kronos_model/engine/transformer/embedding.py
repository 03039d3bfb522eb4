"""The input of the first block, from tables: everything that is constant is computed once.

A bar's two tokens go through the fusion layer, which is linear: so each token has its own vector, and a bar
is their sum. The five time tables become two, by time of day and by date.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from kronos_model.model import TIME_TABLES, Kronos


class BarEmbedding:
    """A bar as the sum of four rows of one table: s1, s2, time of day, date."""

    def __init__(self, model: Kronos) -> None:
        embedding, width = model.embedding, model.d_model
        fusion = embedding.fusion_proj
        device = fusion.weight.device
        weight, bias = _exact(fusion.weight), _exact(fusion.bias)
        s1 = _exact(embedding.emb_s1.weight) * embedding.scale @ weight[:, :width].T + bias
        s2 = _exact(embedding.emb_s2.weight) * embedding.scale @ weight[:, width:].T
        minute, hour, weekday, day, month = (_exact(table.weight) for table in model.time_emb.tables())
        clock = hour[:, None] + minute[None]  # (hours, minutes, d_model)
        date = month[:, None, None] + day[None, :, None] + weekday[None, None]
        parts = [s1, s2, clock.flatten(0, 1), date.flatten(0, 2)]
        self._table = torch.cat(parts).float().to(device)
        offsets = np.cumsum([0, *(len(part) for part in parts[:-1])])
        self._token_offsets = torch.from_numpy(offsets[:2]).to(device)
        self._calendar_offsets = offsets[2:]

    def calendar(self, stamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the table for stamps (T, 5) from ``columns.time_features``: (T, 2)."""
        minute, hour, weekday, day, month = stamps.T
        clock = hour * TIME_TABLES["minute"] + minute
        date = (month * TIME_TABLES["day"] + day) * TIME_TABLES["weekday"] + weekday
        rows: NDArray[np.int64] = np.stack((clock, date), axis=-1) + self._calendar_offsets
        return rows

    def __call__(self, tokens: Tensor, calendar: Tensor) -> Tensor:
        """Tokens (N, 2) and the rows of ``calendar`` (N, 2) → (N, d_model)."""
        rows = torch.cat((tokens + self._token_offsets, calendar), dim=-1)
        return F.embedding(rows, self._table).sum(1)


def _exact(weight: Tensor) -> Tensor:
    """The weight in float64, so that folding rounds once; on the CPU, as some devices have no float64."""
    return weight.detach().cpu().double()
