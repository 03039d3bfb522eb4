"""The transformer's input for chunks: bars of prompts, and of paths in windows that have slid."""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.engine.chunks.generation_state import GenerationState
from kronos_model.engine.chunks.packed import RunPlan, places_of
from kronos_model.engine.chunks.transfer import joined
from kronos_model.engine.scheduling.runs import SlotSpan
from kronos_model.engine.sequence import Chunk, Phase
from kronos_model.engine.transformer.kv_cache import PathsSegment, PromptSegment


@dataclass(frozen=True)
class ContextPart:
    """The N bars of a chunk that are in the context."""

    state: GenerationState
    segment: PromptSegment | PathsSegment
    calendar: NDArray[np.int64]  # (N, 2)
    positions: NDArray[np.int64]  # (N,)
    lookback: slice | None = None  # where their tokens are in the lookback; of paths, they are in slots

    @classmethod
    def of(cls, chunk: Chunk, state: GenerationState) -> Self | None:
        """None if nothing of the chunk is in the context."""
        sequence = chunk.sequence
        prompt_length, start = sequence.prompt_length, sequence.cached_from
        if chunk.phase is Phase.WINDOW_PATHS:
            num_paths, num_bars = chunk.last - chunk.first, sequence.num_generated
            slots = sequence.slots[chunk.first : chunk.last]
            first = sequence.cached_prompt_length
            return cls(
                state,
                PathsSegment(
                    num_paths, num_bars, sequence.prompt_slot, (0, first), slots, sequence.own_start
                ),
                np.tile(state.calendar[prompt_length : prompt_length + num_bars], (num_paths, 1)),
                np.tile(np.arange(first, first + num_bars), num_paths),
            )
        skipped = sequence.request.lookback - 1 - prompt_length  # bars of lookback before the context
        if chunk.phase is Phase.LOOKBACK:
            first, last = max(0, chunk.first - skipped), min(chunk.last - skipped, prompt_length)
        else:
            first, last = chunk.first + start, chunk.last + start
        if first >= last:
            return None
        return cls(
            state,
            PromptSegment(sequence.prompt_slot, first - start, last - start),
            state.calendar[first:last],
            np.arange(first - start, last - start),
            slice(skipped + first, skipped + last),
        )

    @property
    def own_tokens(self) -> list[SlotSpan]:
        """Where the tokens of paths are."""
        if isinstance(self.segment, PromptSegment):
            return []
        return [(slot, 0, self.segment.num_bars) for slot in self.segment.slots]


class ContextPlan(NamedTuple):
    """What the transformer needs on the device for N bars, and if attention is packed, one plan of it."""

    calendar: Tensor  # (N, 2)
    positions: Tensor  # (N,)
    own_tokens: Tensor  # (2, n), slots and bars
    packed: tuple[RunPlan, ...]

    @classmethod
    def of(cls, parts: Many[ContextPart], *, packs: bool) -> Self:
        """In the host's memory. Parts of prompts come first."""
        return cls(
            joined((one.calendar for one in parts), 2),
            joined(one.positions for one in parts),
            places_of(span for one in parts for span in one.own_tokens),
            (RunPlan.of_segments(one.segment for one in parts),) if packs else (),
        )
