"""Keys and values in slots, and how a batch's tokens are written and read.

A batch's tokens lie flat, (N, H, hd), segment after segment; each segment records where its keys and values
go and what its queries see. H = heads, hd = head_dim, S = paths, n = bars a path.
"""

import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kronos_model.engine.scheduling.path_table import OwnRead, PromptRead, Span, padded_bars
from kronos_model.engine.transformer.attention import (
    attend,
    attend_by_group,
    attend_so_far,
    attend_together,
    mask_of,
    merge,
)

SlotSpan = tuple[int, int, int]
"""A slot, and the bars ``[first, last)`` of it."""


class KVCache:
    """Room for ``capacity`` bars in each slot of every layer. On the CPU, memory is taken as it is written.

    It begins as zeros, because masked values are multiplied by zero and must be finite.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        num_heads: int,
        capacity: int,
        head_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (num_layers, num_slots, num_heads, padded_bars(capacity), head_dim)
        self.k, self.v = _zeros(shape, device, dtype), _zeros(shape, device, dtype)


def cache_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """The type of cached keys and values. A CPU without tiles (AMX) is fast in float32 only."""
    is_fast = device.type != "cpu" or torch.cpu.get_capabilities().get("amx_bf16", False)
    return dtype if is_fast else torch.float32


def cached_head_dim(device: torch.device, head_dim: int) -> int:
    """Numbers of a head in the cache: whole vectors on a CPU, and what kernels need on a GPU."""
    multiple = 16 if device.type == "cpu" else 8
    return -(-head_dim // multiple) * multiple


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    # Taken as it is written to, in small pages. PyTorch's zeros are taken at once; those of NumPy in huge
    # pages, which take as much for one bar as for a slot, and seconds to be zeroed.
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE)
    except OSError as error:  # as other allocators fail
        raise MemoryError(
            f"can't allocate memory for {num_bytes} bytes of keys or values: {error}"
        ) from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux
        with suppress(OSError):  # a kernel that has no huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class Segment(Protocol):
    """Some of a batch's tokens."""

    @property
    def num_tokens(self) -> int: ...

    def store(self, cache: KVCache, layer: int, k: Tensor, v: Tensor) -> None:
        """Put k and v (N, H, hd) into the cache."""

    def attend(self, cache: KVCache, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v; return the results (N, H, hd) of q over them and what the cache held before."""


@dataclass(frozen=True)
class RowSpan:
    """Rows ``[first_row, first_row + num_rows)`` of a batch: bars that follow each other in a window.

    The last row sees the bars of ``seen`` but for the last ``num_later``. Each earlier row sees a bar less
    than the row after it.
    """

    first_row: int
    num_rows: int
    seen: tuple[SlotSpan, ...]
    num_later: int = 0

    @property
    def num_keys(self) -> int:
        """Bars that the last row sees."""
        return sum(last - first for _, first, last in self.seen) - self.num_later

    def parts(self, most: int) -> Iterator["RowSpan"]:
        """The same rows, at most so many in each part."""
        for first in range(0, self.num_rows, most):
            num_rows = min(most, self.num_rows - first)
            num_later = self.num_later + self.num_rows - first - num_rows
            yield RowSpan(self.first_row + first, num_rows, self.seen, num_later)


class ChunkSegment(Segment, Protocol):
    """A segment of bars that follow each other."""

    def row_spans(self, first_row: int) -> list[RowSpan]:
        """The same for ``PackedSegment``, if it begins with this row of a batch."""

    @property
    def stored(self) -> list[SlotSpan]:
        """Where its keys and values go."""


@dataclass(frozen=True)
class PromptSegment:
    """Bars ``[first, last)`` of a prompt; each sees the prompt up to itself."""

    slot: int
    first: int
    last: int

    @property
    def num_tokens(self) -> int:
        return self.last - self.first

    def row_spans(self, first_row: int) -> list[RowSpan]:
        return [RowSpan(first_row, self.num_tokens, ((self.slot, 0, self.last),))]

    @property
    def stored(self) -> list[SlotSpan]:
        return [(self.slot, self.first, self.last)]

    def store(self, cache: KVCache, layer: int, k: Tensor, v: Tensor) -> None:
        cache.k[layer, self.slot, :, self.first : self.last] = k.transpose(0, 1)
        cache.v[layer, self.slot, :, self.first : self.last] = v.transpose(0, 1)

    def attend(self, cache: KVCache, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(cache, layer, k, v)
        keys, values = cache.k[layer, self.slot], cache.v[layer, self.slot]
        return attend_so_far(q.to(cache.k.dtype), keys, values, self.first)


@dataclass(frozen=True)
class PathsSegment:
    """``num_bars`` bars of each path, path by path; each sees the prompt and its own path up to itself.

    ``slots`` and ``first`` are where each path's bars go. Without slots they are not kept, because no later
    step reads them.
    """

    num_paths: int
    num_bars: int
    prompt_slot: int
    prompt: Span
    slots: tuple[int, ...] = ()
    first: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_paths * self.num_bars

    def row_spans(self, first_row: int) -> list[RowSpan]:
        prompt = (self.prompt_slot, *self.prompt)
        return [
            RowSpan(first_row + path * self.num_bars, self.num_bars, (prompt, own))
            for path, own in enumerate(self.stored)
        ]

    @property
    def stored(self) -> list[SlotSpan]:
        return [(slot, self.first, self.first + self.num_bars) for slot in self.slots]

    def _by_path(self, x: Tensor) -> Tensor:
        """(S · n, H, hd) → (S, H, n, hd)."""
        return x.reshape(self.num_paths, self.num_bars, *x.shape[1:]).transpose(1, 2)

    def store(self, cache: KVCache, layer: int, k: Tensor, v: Tensor) -> None:
        if self.slots:
            slots, bars = list(self.slots), slice(self.first, self.first + self.num_bars)
            cache.k[layer, slots, :, bars] = self._by_path(k).to(cache.k.dtype)
            cache.v[layer, slots, :, bars] = self._by_path(v).to(cache.v.dtype)

    def attend(self, cache: KVCache, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(cache, layer, k, v)
        kept_as, by_path = cache.k.dtype, self._by_path
        q, k, v = by_path(q.to(kept_as)), by_path(k.to(kept_as)), by_path(v.to(kept_as))
        own = attend(q, k, v, is_causal=True)
        mixed = own.out
        if self.prompt[0] < self.prompt[1]:
            place = layer, self.prompt_slot, slice(None), slice(*self.prompt)
            shared = attend_by_group(q, cache.k[place], cache.v[place])
            mixed = merge(own.out, own.weight, shared.out, shared.weight)
        return mixed.transpose(1, 2).flatten(0, 1)  # (S · n, H, hd)


class DecodeRows(ABC):
    """The newest bar of every path: R rows; each is written to its own ``slots`` (R,) at ``bars`` (R,)."""

    def __init__(self, slots: Tensor, bars: Tensor) -> None:
        self._slots, self._bars = slots, bars

    @property
    def num_tokens(self) -> int:
        return len(self._slots)

    def store(self, cache: KVCache, layer: int, k: Tensor, v: Tensor) -> None:
        cache.k[layer, self._slots, :, self._bars] = k
        cache.v[layer, self._slots, :, self._bars] = v

    def attend(self, cache: KVCache, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(cache, layer, k, v)
        return self.read(cache, layer, q)

    @abstractmethod
    def read(self, cache: KVCache, layer: int, q: Tensor) -> Tensor:
        """The results of q (R, H, hd) over what the cache holds, each row over its own path."""


class DecodeSegment(DecodeRows):
    """Rows of any slots, and reads that are planned for them."""

    def __init__(
        self, slots: Tensor, bars: Tensor, own_reads: Sequence[OwnRead], prompt_reads: Sequence[PromptRead]
    ) -> None:
        super().__init__(slots, bars)
        self._own_reads, self._prompt_reads = own_reads, prompt_reads
        self._sizes: list[int] = []
        self._masks: list[Tensor | None] = []
        for read in own_reads:
            mask = None
            if read.seen is not None:
                hidden = torch.arange(read.num_bars) >= torch.tensor(read.seen).unsqueeze(-1)
                mask = mask_of(hidden)[:, None, None].to(slots.device)  # (rows, 1, 1, bars)
            self._sizes.append(read.last_row - read.first_row)
            self._masks.append(mask)
        self._views: dict[KVCache, list[tuple[_Layers, _Layers]]] = {}

    def read(self, cache: KVCache, layer: int, q: Tensor) -> Tensor:
        views, queries = self._views_of(cache), q.unsqueeze(2)
        by_read = torch.split(queries, self._sizes) if len(self._sizes) > 1 else (queries,)
        outs, weights = [], []
        for query, mask, (keys, values) in zip(by_read, self._masks, views, strict=True):
            own = attend(query, keys[layer], values[layer], mask)
            outs.append(own.out)
            weights.append(own.weight)
        mixed = (outs[0] if len(outs) == 1 else torch.cat(outs)).squeeze(2)
        if self._prompt_reads:
            weight = torch.cat(weights).squeeze(2)
            for prompt in self._prompt_reads:
                rows, bars = slice(prompt.first_row, prompt.last_row), slice(*prompt.bars)
                place = layer, prompt.slot, slice(None), bars
                shared = attend_together(q[rows], cache.k[place], cache.v[place])
                mixed[rows] = merge(mixed[rows], weight[rows], shared.out, shared.weight)
        return mixed

    def _views_of(self, cache: KVCache) -> "list[tuple[_Layers, _Layers]]":
        """The keys and values of each read, by layer: cut once for all layers."""
        if cache not in self._views:
            views = self._views[cache] = []
            for read, num_rows in zip(self._own_reads, self._sizes, strict=True):
                slots, bars = slice(read.first_slot, read.first_slot + num_rows), slice(read.num_bars)
                views.append((cache.k[:, slots, :, bars].unbind(), cache.v[:, slots, :, bars].unbind()))
        return self._views[cache]


_Layers = tuple[Tensor, ...]  # (rows, H, bars, hd) by layer
