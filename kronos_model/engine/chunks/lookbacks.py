"""The tokenizer's input for chunks of lookbacks."""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.bars.columns import COLUMNS
from kronos_model.engine.chunks.generation_state import GenerationState
from kronos_model.engine.chunks.tokens import CodingPlan, TokenCoder
from kronos_model.engine.chunks.transfer import joined
from kronos_model.engine.sequence import Chunk
from kronos_model.engine.transformer.kv_cache import KVCache, PromptSegment


@dataclass(frozen=True)
class LookbackPart:
    """Bars of a lookback. ``slots``: where its last token goes, if that is among them."""

    state: GenerationState
    cache: KVCache
    segment: PromptSegment
    slots: tuple[int, ...]

    @classmethod
    def of(cls, chunk: Chunk, state: GenerationState, *, packs: bool) -> Self:
        """If attention is packed, earlier bars are encoded again: few lookbacks come in parts."""
        assert state.encoded is not None
        is_last = chunk.last == chunk.sequence.request.lookback
        segment = PromptSegment(0, 0 if packs else chunk.first, chunk.last)
        return cls(state, state.encoded, segment, chunk.sequence.slots if is_last else ())

    @property
    def is_last(self) -> bool:
        return bool(self.slots)

    @property
    def bars(self) -> NDArray[np.float32]:
        """Scaled, (num_tokens, 6)."""
        return self.state.scaled[self.segment.first : self.segment.last]


class LookbackPlan(NamedTuple):
    """What tokenizing needs on the device for N bars."""

    bars: Tensor  # (N, 6), scaled
    coding: CodingPlan
    complete: Tensor  # (n, 2), row of a lookback's last bar, and slot

    @classmethod
    def of(cls, parts: Many[LookbackPart], coder: TokenCoder) -> Self:
        """In the host's memory."""
        last_rows = np.cumsum([one.segment.num_tokens for one in parts]) - 1
        complete = [(row, slot) for one, row in zip(parts, last_rows, strict=True) for slot in one.slots]
        return cls(
            joined((one.bars for one in parts), len(COLUMNS), dtype=np.float32),
            coder.plan_encoding([one.segment for one in parts]),
            torch.from_numpy(np.array(complete, dtype=np.int64).reshape(-1, 2)),
        )
