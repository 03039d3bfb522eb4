"""A test at load: do the kernels compute what the model itself computes?"""

from typing import Final

import numpy as np
import torch
from torch import Tensor

from kronos_model.bars.columns import TIME_FEATURES
from kronos_model.engine.native.network import NativeNetwork
from kronos_model.engine.scheduling.path_table import Batch, PathTable
from kronos_model.engine.transformer.kv_cache import PromptSegment
from kronos_model.model import Kronos

NUM_BARS: Final = 40
"""More than a panel of keys, and no whole number of blocks."""
MAX_DIFFERENCE: Final = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Of logits, divided by the largest one if that is above 1."""


@torch.inference_mode()
def difference_of(network: NativeNetwork, model: Kronos, dtype: torch.dtype) -> str | None:
    """None if logits after a short series are those of the model, else how they differ.

    The series is in the path's own slot, then in one that paths share. Slots are left with finite contents.
    """
    generator = torch.Generator().manual_seed(0)
    s1, s2 = (
        torch.randint(size, (1, NUM_BARS), generator=generator)
        for size in (network.s1_vocabulary, network.s2_vocabulary)
    )
    stamps = torch.zeros(1, NUM_BARS, len(TIME_FEATURES), dtype=torch.int64)
    s1_logits, context = model.decode_s1(s1, s2, stamps)
    expected = s1_logits[0, -1:], model.decode_s2(context, s1[:, :1])[0, -1:]
    tokens = torch.stack((s1[0], s2[0]), dim=-1)
    calendar = torch.from_numpy(network.embedding.calendar(stamps[0].numpy()))
    own, shared = 0, 1
    before = NUM_BARS - 1
    columns: dict[int, dict[str, int]] = {
        own: {"bar": before, "seen": NUM_BARS},
        shared: {"bar": 0, "seen": 1, "prompt": 0, "prompt_bars": before},
    }
    for slot, values in columns.items():
        network.fill(
            tokens[:before], calendar[:before], torch.arange(before), [PromptSegment(slot, 0, before)]
        )
        table = PathTable(1, max_context=NUM_BARS)
        for name, value in {"position": before, **values}.items():
            table.columns[name][:] = value
        found: list[Tensor] = []

        def choose(_: int, logits: Tensor, found: list[Tensor] = found) -> Tensor:
            found.append(logits.clone())
            return s1[0, :1]

        network.decode(Batch(table, (), np.zeros(1, np.int64)), tokens[before:], calendar[before:], choose)
        for name, logits, wanted in zip(("s1", "s2"), found, expected, strict=True):
            scale = max(1.0, float(wanted.abs().max()))
            if not torch.allclose(logits, wanted, rtol=0, atol=scale * MAX_DIFFERENCE[dtype], equal_nan=True):
                difference = float((logits - wanted).abs().max())
                return f"logits of {name} differ from PyTorch's by {difference:.2g}"
    return None
