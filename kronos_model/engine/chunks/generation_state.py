"""What the runner holds of a generation apart from slots."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.bars.columns import Scaling
from kronos_model.engine.chunks.tokens import DecodedPrompt
from kronos_model.engine.transformer.kv_cache import KVCache


@dataclass(eq=False)
class GenerationState:
    """Tensors and arrays of a generation. T = lookback, P = prompt length, H = horizon."""

    scaling: Scaling
    scaled: NDArray[np.float32]  # (T, 6)
    calendar: NDArray[np.int64]  # (P + 1 + H, 2), rows of the embedding's table
    encoded: KVCache | None  # of the tokenizer's encoder, while the lookback is tokenized
    lookback: Tensor = field(default_factory=lambda: torch.empty(0, 2))  # (T, 2), tokens; fewer meanwhile
    prompt: DecodedPrompt | None = None  # of the bars that paths are turned back into
    suspended: dict[int, "SuspendedPath"] = field(default_factory=dict)  # by path
    generated: dict[int, Tensor] = field(default_factory=dict)  # by path: (H, 2), tokens
    paths: dict[int, NDArray[np.float32]] = field(default_factory=dict)  # by path: (H, 6), scaled


@dataclass(frozen=True)
class SuspendedPath:
    """What was in a path's slot, in the host's memory. n = its own bars."""

    tokens: Tensor  # (n + 1, 2)
    cached: list[Tensor]  # keys and values
