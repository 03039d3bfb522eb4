"""Segments of a batch whose attention is computed together: a few operations, however many series there are.

For devices on which a kernel's launch costs more than the padding. Results depend on the batch.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kronos_model.engine.transformer.attention import attend, mask_of
from kronos_model.engine.transformer.kv_cache import ChunkSegment, KVCache, RowSpan, SlotSpan

KEY_BLOCK = 16
"""PyTorch copies masks whose rows are no multiple of this."""

MAX_ROWS: Final = 512
"""The rows of the longest span; longer ones are cut."""
MAX_SCORES: Final = 1 << 23
"""The most scores of a group, by head; a single span may have more."""
MAX_KEYS: Final = 1 << 16
"""The most keys of a group, which are copied together: 117 MB of Kronos-base's in bfloat16."""
MAX_WASTED_SCORES: Final = 1 << 18
"""Padding of so many scores costs less than another product."""


class PaddedGroup(NamedTuple):
    """B spans of rows, padded to n rows and m keys. All int64."""

    rows: Tensor  # (B, n), of the batch
    num_seen: Tensor  # (B, n), keys that each row sees, from the first
    slots: Tensor  # (B, m), of the keys
    bars: Tensor  # (B, m), of the keys

    @classmethod
    def from_row_spans(cls, spans: Sequence[RowSpan]) -> Self:
        """Padding repeats a span's last row and first key."""
        rows = np.arange(max(span.num_rows for span in spans))
        num_keys = np.array([[span.num_keys] for span in spans])
        last = np.array([[span.num_rows - 1] for span in spans])
        first_rows = np.array([[span.first_row] for span in spans])
        own = np.minimum(rows, last)
        padded = np.arange(-(-num_keys.max() // KEY_BLOCK) * KEY_BLOCK)
        seen = places_of(place for span in spans for place in span.seen)
        num_seen = np.array([sum(last - first for _, first, last in span.seen) for span in spans])
        firsts = (np.cumsum(num_seen) - num_seen)[:, np.newaxis]
        places = seen[:, torch.from_numpy(firsts + np.where(padded < num_keys, padded, 0))]  # (2, B, m)
        num_keys_before = num_keys - last
        return cls(torch.from_numpy(first_rows + own), torch.from_numpy(num_keys_before + own), *places)


class PackedPlan(NamedTuple):
    """The groups of N rows, where each row's result is among theirs, and where its keys and values go."""

    groups: tuple[PaddedGroup, ...]
    results: Tensor  # (N,)
    places: Tensor  # (2, N), slots and bars

    @classmethod
    def from_row_spans(cls, spans: Iterable[RowSpan], stored: Iterable[SlotSpan] = ()) -> Self:
        """In the host's memory. ``stored``: where the rows go, in their order."""
        grouped = group_spans(spans)
        groups = tuple(map(PaddedGroup.from_row_spans, grouped))
        results = np.empty(sum(span.num_rows for group in grouped for span in group), dtype=np.int64)
        first = 0
        for group, (rows, *_) in zip(grouped, groups, strict=True):
            for span in group:
                results[span.first_row : span.first_row + span.num_rows] = first + np.arange(span.num_rows)
                first += rows.shape[1]
        return cls(groups, torch.from_numpy(results), places_of(stored))

    @classmethod
    def from_segments(cls, segments: Iterable[ChunkSegment]) -> Self:
        """The same for segments, one after the other."""
        spans: list[RowSpan] = []
        stored: list[SlotSpan] = []
        num_rows = 0
        for segment in segments:
            spans += segment.row_spans(num_rows)
            stored += segment.stored
            num_rows += segment.num_tokens
        return cls.from_row_spans(spans, stored)


class PackedSegment:
    """Rows of a batch with a plan, which is on their device; multiplies in ``dtype``."""

    def __init__(self, plan: PackedPlan, dtype: torch.dtype) -> None:
        self._plan, self._dtype = plan, dtype
        self._masks = [_mask(group, dtype) for group in plan.groups]

    @property
    def num_tokens(self) -> int:
        return len(self._plan.results)

    def store(self, cache: KVCache, layer: int, k: Tensor, v: Tensor) -> None:
        slots, bars = self._plan.places
        cache.k[layer, slots, :, bars] = k.to(cache.k.dtype)
        cache.v[layer, slots, :, bars] = v.to(cache.v.dtype)

    def attend(self, cache: KVCache, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(cache, layer, k, v)
        keys_and_values = (
            [x[layer, group.slots, :, group.bars] for x in (cache.k, cache.v)] for group in self._plan.groups
        )
        return self._attend(q, keys_and_values)

    def _attend(self, q: Tensor, keys_and_values: Iterable[list[Tensor]]) -> Tensor:
        """The results (N, H, hd) of queries (N, H, hd) over each group's keys and values (B, m, H, hd)."""
        q = q.to(self._dtype)
        outs = []
        for group, mask, (k, v) in zip(self._plan.groups, self._masks, keys_and_values, strict=True):
            queries, keys, values = (x.transpose(1, 2) for x in (q[group.rows], k, v))
            if q.device.type == "cuda":  # in bfloat16, PyTorch's choice there plans each shape anew (cuDNN)
                out = attend(queries, keys, values, mask).out  # (B, H, n, hd)
            else:
                out = F.scaled_dot_product_attention(queries, keys, values, mask)
            outs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outs)[self._plan.results]


class FlatSegment(PackedSegment):
    """Rows that see rows of the same batch only, which are its "bars"; nothing is kept."""

    def store(self, cache: KVCache, layer: int, k: Tensor, v: Tensor) -> None:
        """Nothing to do."""

    def attend(self, cache: KVCache, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k.to(self._dtype), v.to(self._dtype)
        return self._attend(q, ([k[group.bars], v[group.bars]] for group in self._plan.groups))


def group_spans(spans: Iterable[RowSpan]) -> list[list[RowSpan]]:
    """Groups of spans that are so alike that padding them at most doubles the work."""
    parts: list[RowSpan] = []
    for span in spans:
        parts += span.parts(MAX_ROWS)
    groups: list[list[RowSpan]] = []
    num_rows = num_keys = num_scores = 0
    for span in sorted(parts, key=attrgetter("num_keys", "num_rows"), reverse=True):
        rows = max(num_rows, span.num_rows)
        scores = num_scores + span.num_rows * span.num_keys
        keys = (len(groups[-1]) + 1) * num_keys if groups else 0
        padded = rows * keys
        is_too_large = keys > MAX_KEYS or padded > MAX_SCORES
        if not groups or is_too_large or padded - scores > max(scores, MAX_WASTED_SCORES):
            groups.append([])
            rows, num_keys, scores = span.num_rows, span.num_keys, span.num_rows * span.num_keys
        groups[-1].append(span)
        num_rows, num_scores = rows, scores
    return groups


def places_of(spans: Iterable[SlotSpan]) -> Tensor:
    """Slots and bars (2, number of bars) of spans, one after the other, in the host's memory."""
    slots, firsts, lasts = np.array([*spans], dtype=np.int64).reshape(-1, 3).T
    counts = lasts - firsts
    shifts = np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    return torch.from_numpy(np.stack((np.repeat(slots, counts), np.arange(counts.sum()) + shifts)))


def _mask(group: PaddedGroup, dtype: torch.dtype) -> Tensor:
    """(B, 1, n, m), −inf where a row does not see a key."""
    hidden = torch.arange(group.bars.shape[1], device=group.bars.device) >= group.num_seen.unsqueeze(-1)
    return mask_of(hidden, dtype).unsqueeze(1)
