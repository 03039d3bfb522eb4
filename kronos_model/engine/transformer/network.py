"""The model as the engine runs it: weights folded and fused, keys and values in slots.

A batch has N tokens in a row; a decode step has R rows, one a path. Everything that is constant is computed
once, and weights are folded into fewer and larger operations. A norm's scale goes into the layer that reads
it. The two halves of a head, which rotary position rotates against each other, are interleaved, so that the
rotation is one product of complex numbers. Cached keys have that order.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from kronos_model.engine.scheduling.path_table import (
    CHANGING_COLUMNS,
    Batch,
    plan_own_reads,
    plan_prompt_reads,
)
from kronos_model.engine.transformer.kv_cache import (
    DecodeRows,
    DecodeSegment,
    KVCache,
    Segment,
    cache_dtype,
    cached_head_dim,
)
from kronos_model.engine.transformer.linear import Affine, FusedLinear
from kronos_model.layers import NORM_EPSILON, TransformerBlock
from kronos_model.model import DEPENDENCY_HEADS, TIME_TABLES, Kronos

_EPSILON = torch.tensor(NORM_EPSILON)
Choose = Callable[[int, Tensor], Tensor]
"""Chooses tokens (R,) from logits (R, vocabulary); the first argument is 0 for s1 and 1 for s2."""


class Network(ABC):
    """A model on its device, with a cache of keys and values for each layer that attends.

    ``capacity`` bars fit a slot. Weights are copied at construction.
    """

    def __init__(self, model: Kronos, *, num_slots: int, capacity: int, dtype: torch.dtype) -> None:
        self.device = model.head.proj_s1.weight.device
        self.s1_vocabulary = model.head.proj_s1.out_features
        self.s2_vocabulary = model.head.proj_s2.out_features
        self.embedding = BarEmbedding(model)
        self.kept_as = kept_as = cache_dtype(self.device, dtype)
        attention = cast(TransformerBlock, model.transformer[0]).self_attn
        self.blocks, self.dependency = (
            KVCache(
                num_layers,
                num_slots,
                layer.n_heads,
                capacity,
                cached_head_dim(self.device, layer.head_dim),
                device=self.device,
                dtype=kept_as,
            )
            for num_layers, layer in ((len(model.transformer), attention), (1, model.dep_layer.cross_attn))
        )

    def copy_slot(self, slot: int, num_bars: int) -> list[Tensor]:
        """The first bars of a slot's keys and values, in the host's memory."""
        parts = (self.blocks.k, self.blocks.v, self.dependency.k, self.dependency.v)
        return [part[:, slot, :, :num_bars].to("cpu", copy=True) for part in parts]

    def fill_slot(self, slot: int, copied: Sequence[Tensor]) -> None:
        """Put what ``copy_slot`` returned into a slot."""
        parts = (self.blocks.k, self.blocks.v, self.dependency.k, self.dependency.v)
        for part, bars in zip(parts, copied, strict=True):
            part[:, slot, :, : bars.shape[2]] = bars.to(part.device)

    @abstractmethod
    def fill(self, tokens: Tensor, calendar: Tensor, positions: Tensor, segments: Sequence[Segment]) -> None:
        """Put the keys and values of tokens (N, 2) at ``positions`` (N,) of their windows into the cache."""

    @abstractmethod
    def decode(self, batch: Batch, tokens: Tensor, calendar: Tensor, choose: Choose) -> Tensor:
        """Put the newest tokens (R, 2) of a batch's paths into the cache; return those that follow (R, 2)."""


class TorchNetwork(Network):
    """Computes with PyTorch's operations, on any device, and multiplies in ``dtype``.

    Positions are below ``max_positions``.
    """

    @torch.inference_mode()
    def __init__(
        self, model: Kronos, *, num_slots: int, capacity: int, max_positions: int, dtype: torch.dtype
    ) -> None:
        super().__init__(model, num_slots=num_slots, capacity=capacity, dtype=dtype)
        self._transformer = BlockStack(model.transformer, dtype)
        self._transformer.reserve_positions(max_positions)
        self._norm_scale = model.norm.weight.detach().clone()

        layer = DependencyWeights.from_model(model, self.dependency.k.shape[-1])
        self._dependency_kv = FusedLinear(layer.k, layer.v, dtype=dtype)
        self._dependency_out = FusedLinear(layer.out, dtype=dtype)
        self._dependency_norm_scale = layer.norm_scale
        self._sibling_queries = layer.queries.to(self.kept_as)
        self._s1_head = FusedLinear(Affine.from_linear(model.head.proj_s1), dtype=dtype)
        self._s2_head = FusedLinear(Affine.from_linear(model.head.proj_s2), dtype=dtype)

    def fill(self, tokens: Tensor, calendar: Tensor, positions: Tensor, segments: Sequence[Segment]) -> None:
        k, v = self._keys_and_values(self._context(tokens, calendar, positions, segments))
        for segment, at in zip(segments, rows_of(segments), strict=True):
            segment.store(self.dependency, 0, k[at], v[at])

    def decode(self, batch: Batch, tokens: Tensor, calendar: Tensor, choose: Choose) -> Tensor:
        changing = batch.table.values[: len(CHANGING_COLUMNS), batch.slots]
        _, positions, bars, _ = torch.from_numpy(changing).to(self.device).unbind()
        slots = torch.from_numpy(batch.slots).to(self.device)
        segment = DecodeSegment(slots, bars, plan_own_reads(batch), plan_prompt_reads(batch))
        return self.next_tokens(tokens, calendar, positions, segment, choose)

    def next_tokens(
        self, tokens: Tensor, calendar: Tensor, positions: Tensor, segment: DecodeRows, choose: Choose
    ) -> Tensor:
        """``decode`` for rows of any kind."""
        context = self._context(tokens, calendar, positions, [segment])  # (R, d_model)
        segment.store(self.dependency, 0, *self._keys_and_values(context))
        s1 = choose(0, self._s1_head(context))
        informed = segment.read(self.dependency, 0, self._sibling_queries[s1])
        informed = self._dependency_out(informed.flatten(1))
        s2 = choose(1, self._s2_head(normalise(context + informed) * self._dependency_norm_scale))
        return torch.stack((s1, s2), dim=-1)

    def _context(
        self, tokens: Tensor, calendar: Tensor, positions: Tensor, segments: Sequence[Segment]
    ) -> Tensor:
        x = self.embedding(tokens, calendar)
        x = self._transformer.run(x, positions, segments, [self.blocks] * len(segments))
        return normalise(x) * self._norm_scale

    def _keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the dependency-aware layer, each (N, H, head_dim)."""
        both = self._dependency_kv(context).to(self.kept_as)
        k, v = both.view(len(context), 2, DEPENDENCY_HEADS, -1).unbind(1)
        return k, v


class BarEmbedding:
    """The input of the first block: a bar as the sum of four rows of one table: s1, s2, time of day, date.

    A bar's two tokens go through the fusion layer, which is linear: so each token has its own vector. The
    five time tables become two, by time of day and by date.
    """

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
        self.table = torch.cat(parts).float().to(device)
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
        return F.embedding(self.rows(tokens, calendar), self.table).sum(1)

    def rows(self, tokens: Tensor, calendar: Tensor) -> Tensor:
        """The four rows of the table that are added up for each bar, (N, 4)."""
        return torch.cat((tokens + self._token_offsets, calendar), dim=-1)


def _exact(weight: Tensor) -> Tensor:
    """The weight in float64, so that folding rounds once; on the CPU, as some devices have no float64."""
    return weight.detach().cpu().double()


class BlockStack:
    """The model's transformer, or the tokenizer's encoder or decoder; multiplies in ``dtype``."""

    def __init__(self, blocks: nn.ModuleList, dtype: torch.dtype = torch.float32) -> None:
        originals = [cast(TransformerBlock, block) for block in blocks]
        self._blocks = [_Block(block, dtype) for block in originals]
        # Every block's rotary is the same.
        self._rotary = originals[0].self_attn.rotary if originals else None
        self._turns = torch.empty(0)  # (positions, 3, 1, head_dim / 2, 2), cosine and sine

    def new_cache(self, num_slots: int, capacity: int, device: torch.device) -> KVCache:
        """A cache for this stack's keys and values."""
        heads = (self._blocks[0].n_heads, self._blocks[0].head_dim) if self._blocks else (0, 0)
        return KVCache(len(self._blocks), num_slots, heads[0], capacity, heads[1], device=device)

    def reserve_positions(self, count: int) -> None:
        """Prepare the rotary tables for positions below ``count``."""
        if self._rotary is not None and len(self._turns) < count:
            cos, sin = self._rotary.tables(count)
            half = cos.shape[-1] // 2
            # Values, and what heads are padded with, are not turned: one operation on one tensor.
            turns = cos.new_zeros(count, 3, 1, self._blocks[0].head_dim // 2, 2)
            turns[..., 0] = 1
            turns[:, :2, 0, :half] = torch.stack((cos[:, :half], sin[:, :half]), dim=-1).unsqueeze(1)
            self._turns = turns

    def run(
        self, x: Tensor, positions: Tensor, segments: Sequence[Segment], caches: Sequence[KVCache]
    ) -> Tensor:
        """Flat tokens x (N, d_model) at ``positions`` (N,) of their windows, segment after segment.

        Each segment has a cache.
        """
        if self._rotary is None:
            return x
        x = x.float()
        turns = torch.view_as_complex(self._turns[positions])  # (N, 3, 1, head_dim / 2)
        parts = [*zip(segments, caches, rows_of(segments), strict=True)]
        for layer, block in enumerate(self._blocks):
            q, k, v = block.project(x, turns)
            if len(parts) == 1:
                mixed = segments[0].attend(caches[0], layer, q, k, v)
            else:
                mixed = torch.cat(
                    [segment.attend(cache, layer, q[at], k[at], v[at]) for segment, cache, at in parts]
                )
            x = block.finish(x, mixed)
        return x


def rows_of(segments: Sequence[Segment]) -> list[slice]:
    """Where the tokens of each segment are in their batch."""
    rows = []
    last = 0
    for segment in segments:
        first, last = last, last + segment.num_tokens
        rows.append(slice(first, last))
    return rows


class BlockWeights(NamedTuple):
    """A block's layers, with the scales of its norms in them, for heads as they are cached."""

    heads: tuple[int, int]  # how many, and the size of one
    q: Affine
    k: Affine
    v: Affine
    out: Affine
    w1: Affine
    w3: Affine
    w2: Affine

    @classmethod
    def from_block(cls, block: TransformerBlock) -> Self:
        attention, feed_forward = block.self_attn, block.ffn
        device = attention.q_proj.weight.device
        heads = attention.n_heads, cached_head_dim(device, attention.head_dim)
        order = _halves_side_by_side(attention.n_heads, attention.head_dim).to(device)
        q, k = (Affine.from_linear(layer).with_rows(order) for layer in (attention.q_proj, attention.k_proj))
        q = q.times(math.sqrt(heads[1] / attention.head_dim))
        q, k, v = (
            layer.after_scale(block.norm1.weight).with_heads(*heads)
            for layer in (q, k, Affine.from_linear(attention.v_proj))
        )
        out = Affine.from_linear(attention.out_proj).after_heads(*heads)
        w1, w3 = (
            Affine.from_linear(layer).after_scale(block.norm2.weight)
            for layer in (feed_forward.w1, feed_forward.w3)
        )
        return cls(heads, q, k, v, out, w1, w3, Affine.from_linear(feed_forward.w2))


class DependencyWeights(NamedTuple):
    """The dependency-aware layer. Its query is a row of the embedding, projected: one table for all steps."""

    k: Affine
    v: Affine
    out: Affine
    queries: Tensor  # (vocabulary, H, head_dim)
    norm_scale: Tensor  # (d_model,)

    @classmethod
    def from_model(cls, model: Kronos, head_dim: int) -> Self:
        layer = model.dep_layer
        attention = layer.cross_attn
        heads = DEPENDENCY_HEADS, head_dim
        q, k, v = map(Affine.from_linear, (attention.q_proj, attention.k_proj, attention.v_proj))
        q = q.times(math.sqrt(head_dim / attention.head_dim)).with_heads(*heads)
        queries = F.linear(model.embedding.emb_s1.weight.detach(), q.weight, q.bias)
        return cls(
            k.with_heads(*heads),
            v.with_heads(*heads),
            Affine.from_linear(attention.out_proj).after_heads(*heads),
            queries.view(-1, *heads),
            layer.norm.weight.detach().clone(),
        )


class _Block:
    """A transformer block's weights as the engine runs them."""

    def __init__(self, block: TransformerBlock, dtype: torch.dtype) -> None:
        weights = BlockWeights.from_block(block)
        self.n_heads, self.head_dim = weights.heads
        device = block.self_attn.q_proj.weight.device
        self._dtype, self._kept_as = dtype, cache_dtype(device, dtype)
        self._qkv = FusedLinear(weights.q, weights.k, weights.v, dtype=dtype)
        self._out = FusedLinear(weights.out, dtype=dtype)
        self._gate = FusedLinear(weights.w1, dtype=dtype, swish=True)
        self._w3 = FusedLinear(weights.w3, dtype=dtype)
        self._w2 = FusedLinear(weights.w2, dtype=dtype)

    def project(self, x: Tensor, turns: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of x (N, d_model), each (N, H, head_dim); the first two are turned."""
        qkv = self._qkv(normalise(x)).float().view(x.shape[0], 3, self.n_heads, -1, 2)
        turned = torch.view_as_real(torch.view_as_complex(qkv) * turns).flatten(-2)
        return turned.to(self._kept_as).unbind(1)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The block's output from its input x (N, d_model) and what attention gave (N, H, head_dim)."""
        x = x + self._out(mixed.reshape(len(x), -1))
        normalised = normalise(x).to(self._dtype)
        return x + self._w2(self._gate(normalised) * self._w3(normalised))


def normalise(x: Tensor) -> Tensor:
    """Root-mean-square norm without its scale."""
    if x.device.type != "cpu":
        return F.rms_norm(x, x.shape[-1:], eps=NORM_EPSILON)
    # The same in four operations; PyTorch's own takes twelve on the CPU.
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    mean_square = torch.addcmul(_EPSILON, length, length, value=1 / x.shape[-1])
    return x * mean_square.rsqrt_()


def _halves_side_by_side(n_heads: int, head_dim: int) -> Tensor:
    """Order of a projection's outputs in which i and i + head_dim / 2 of each head follow each other."""
    return torch.arange(n_heads * head_dim).view(n_heads, 2, -1).transpose(1, 2).flatten()
