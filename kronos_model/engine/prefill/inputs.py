"""Plans on the host what chunks need on the device, and copies it there, the numbers of a type at once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from kronos_model.bars.columns import COLUMNS, Scaling
from kronos_model.engine.generation import Generation
from kronos_model.engine.prefill.packed import PackedPlan, places_of
from kronos_model.engine.sequence import Chunk, Phase, Sequence
from kronos_model.engine.transformer.kv_cache import (
    ChunkSegment,
    KVCache,
    PathsSegment,
    PromptSegment,
    RowSpan,
    SlotSpan,
)

Tree = TypeVar("Tree")


@dataclass(eq=False)
class DecodedPrompt:
    """The tokens (P, 2) that paths follow. Unless packed, the cache keeps their keys and values."""

    tokens: Tensor
    cache: KVCache
    is_cached: bool = False


@dataclass(eq=False)
class GenerationState:
    """The data of a generation that is not in slots. T = lookback, P = prompt length, H = horizon."""

    scaling: Scaling
    scaled: NDArray[np.float32]  # (T, 6)
    calendar: NDArray[np.int64]  # (P + 1 + H, 2), rows of the embedding's table
    encoded: KVCache | None  # of the tokenizer's encoder, while the lookback is tokenized
    lookback: Tensor  # (T, 2), tokens; fewer while it is tokenized
    prompt: DecodedPrompt | None = None  # of the bars that paths are turned back into
    suspended: dict[int, "SuspendedPath"] = field(default_factory=dict)  # by path
    generated: dict[int, Tensor] = field(default_factory=dict)  # by path: (H, 2), tokens
    paths: dict[int, NDArray[np.float32]] = field(default_factory=dict)  # by path: (H, 6), scaled


@dataclass(frozen=True)
class SuspendedPath:
    """The contents of a suspended path's slot, in the host's memory. n = its own bars."""

    tokens: Tensor  # (n + 1, 2)
    cached: list[Tensor]  # keys and values


States = Mapping[Generation, GenerationState]
StateSlice = tuple[GenerationState, slice]
"""Some of the bars of a generation's lookback."""


class PlacingInput(NamedTuple):
    """Calendars of M bars and the tokens of last bars, to be put into slots that sequences have just got."""

    places: Tensor  # (2, M), slots and bars
    calendar: Tensor  # (M, 2)
    last_tokens: Tensor  # (n, 2), number of the tokenized lookback, and slot


def plan_placing(sequences: Iterable[Sequence], states: States) -> PlacingInput:
    """For sequences that have just got slots; for those that begin with the lookback, calendars only."""
    spans: list[SlotSpan] = []
    calendars = []
    last_tokens: list[tuple[int, int]] = []
    num_tokenized = 0
    for sequence in sequences:
        calendars.append(states[sequence.generation].calendar[sequence.prompt_length :])
        spans.append((sequence.slots[0], 0, len(calendars[-1])))
        if sequence.phase is not Phase.LOOKBACK:
            for slot in sequence.slots:
                last_tokens.append((num_tokenized, slot))
            num_tokenized += 1
    return PlacingInput(places_of(spans), joined(calendars, 2), _pairs(last_tokens))


class LookbackInput(NamedTuple):
    """N bars to be tokenized."""

    bars: Tensor  # (N, 6), scaled
    positions: Tensor  # (N,)
    packed: tuple[PackedPlan, ...]  # one if attention is packed
    last_tokens: Tensor  # (n, 2), row of a lookback's last bar, and slot


def plan_lookbacks(
    chunks: Iterable[Chunk], states: States, *, packs: bool
) -> tuple[list[PromptSegment], LookbackInput]:
    """For chunks of lookbacks. If attention is packed, earlier bars are encoded again: few come in parts."""
    segments: list[PromptSegment] = []
    bars, positions = [], []
    row_spans: list[RowSpan] = []
    last_tokens: list[tuple[int, int]] = []
    num_rows = 0
    for chunk in chunks:
        segment = PromptSegment(0, 0 if packs else chunk.first, chunk.last)
        segments.append(segment)
        bars.append(states[chunk.generation].scaled[segment.first : segment.last])
        positions.append(np.arange(segment.first, segment.last))
        first_row, num_rows = num_rows, num_rows + len(bars[-1])
        row_spans.append(RowSpan(first_row, len(bars[-1]), ((0, first_row, num_rows),)))
        if chunk.last == chunk.sequence.request.lookback:
            for slot in chunk.sequence.slots:
                last_tokens.append((num_rows - 1, slot))
    return segments, LookbackInput(
        joined(bars, len(COLUMNS), dtype=np.float32),
        joined(positions),
        (PackedPlan.from_row_spans(row_spans),) if packs else (),
        _pairs(last_tokens),
    )


class ContextInput(NamedTuple):
    """N bars that the transformer computes and caches."""

    calendar: Tensor  # (N, 2)
    positions: Tensor  # (N,)
    own_tokens: Tensor  # (2, n), slots and bars
    packed: tuple[PackedPlan, ...]  # one if attention is packed


def plan_context(
    chunks: Iterable[Chunk], states: States, *, packs: bool
) -> tuple[list[ChunkSegment], list[StateSlice], ContextInput]:
    """For chunks of lookbacks, of prompts, and of paths in windows that have slid.

    Returns:
        The segments, those of prompts first; where in lookbacks the tokens of prompts are; and the input.
    """
    prompts: list[PromptSegment] = []
    paths: list[PathsSegment] = []
    lookbacks: list[StateSlice] = []
    own_tokens: list[SlotSpan] = []
    calendars, positions, path_calendars, path_positions = [], [], [], []
    for chunk in chunks:
        sequence, state = chunk.sequence, states[chunk.generation]
        prompt_length, start = sequence.prompt_length, sequence.cached_from
        if chunk.phase is Phase.WINDOW_PATHS:
            num_paths, num_bars = chunk.last - chunk.first, sequence.num_generated
            slots, first = sequence.slots[chunk.first : chunk.last], sequence.cached_prompt_length
            span = (0, first)
            segment = PathsSegment(num_paths, num_bars, sequence.prompt_slot, span, slots, sequence.own_start)
            paths.append(segment)
            for slot in slots:
                own_tokens.append((slot, 0, num_bars))
            calendar = state.calendar[prompt_length : prompt_length + num_bars]
            path_calendars.append(np.tile(calendar, (num_paths, 1)))
            path_positions.append(np.tile(np.arange(first, first + num_bars), num_paths))
            continue
        skipped = sequence.request.lookback - 1 - prompt_length  # bars of lookback before the context
        if chunk.phase is Phase.LOOKBACK:
            first, last = max(0, chunk.first - skipped), min(chunk.last - skipped, prompt_length)
        else:
            first, last = chunk.first + start, chunk.last + start
        if first < last:
            prompts.append(PromptSegment(sequence.prompt_slot, first - start, last - start))
            lookbacks.append((state, slice(skipped + first, skipped + last)))
            calendars.append(state.calendar[first:last])
            positions.append(np.arange(first - start, last - start))
    segments: list[ChunkSegment] = [*prompts, *paths]
    return (
        segments,
        lookbacks,
        ContextInput(
            joined(calendars + path_calendars, 2),
            joined(positions + path_positions),
            places_of(own_tokens),
            (PackedPlan.from_segments(segments),) if packs else (),
        ),
    )


def joined(arrays: Iterable[NDArray[Any]], *width: int, dtype: DTypeLike = np.int64) -> Tensor:
    """Any number of arrays (n, *width) as one tensor in the host's memory."""
    return torch.from_numpy(np.concatenate([np.empty((0, *width), dtype=dtype), *arrays]))


def to_device(tree: Tree, device: torch.device) -> Tree:
    """The same nested tuples with their tensors on the device, where those of a type lie in one memory."""
    if device.type == "cpu":
        return tree
    leaves, structure = pytree.tree_flatten(tree)
    moved: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        places = [place for place, leaf in enumerate(leaves) if leaf.dtype is dtype]
        flat = torch.cat([leaves[place].flatten() for place in places])
        if not len(flat):
            flat = flat.new_empty(0, device=device)
        elif device.type == "cuda":  # only there PyTorch keeps pinned memory until it is copied
            flat = flat.pin_memory().to(device, non_blocking=True)
        else:
            flat = flat.to(device)
        parts = torch.split(flat, [leaves[place].numel() for place in places])
        moved |= {place: part.view(leaves[place].shape) for place, part in zip(places, parts, strict=True)}
    result: Tree = pytree.tree_unflatten([moved[place] for place in range(len(leaves))], structure)
    return result


def _pairs(pairs: list[tuple[int, int]]) -> Tensor:
    return torch.from_numpy(np.array(pairs, dtype=np.int64).reshape(-1, 2))
