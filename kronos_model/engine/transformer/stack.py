"""A stack of transformer blocks over one axis of tokens; attention goes segment by segment over caches.

Weights are folded into fewer and larger operations. A norm's scale goes into the layer that reads it. The
two halves of a head, which rotary position rotates against each other, are interleaved, so that the rotation
is one product of complex numbers. Cached keys have that order.
"""

import math
from collections.abc import Sequence as Many
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kronos_model.engine.transformer.kv_cache import KVCache, Segment, cache_dtype, cached_head_dim
from kronos_model.engine.transformer.linear import Affine, FusedLinear
from kronos_model.layers import NORM_EPSILON, TransformerBlock

_EPSILON = torch.tensor(NORM_EPSILON)


class BlockStack:
    """The model's transformer, or the tokenizer's encoder or decoder; multiplies in ``dtype``."""

    def __init__(self, blocks: nn.ModuleList, dtype: torch.dtype = torch.float32) -> None:
        originals = [cast(TransformerBlock, block) for block in blocks]
        self._blocks = [_Block(block, dtype) for block in originals]
        # Every block's rotary is the same.
        self._rotary = originals[0].self_attn.rotary if originals else None
        self._turns = torch.empty(0)  # (positions, 3, 1, head_dim / 2, 2), cosine and sine

    def new_cache(
        self, num_slots: int, capacity: int, *, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> KVCache:
        """A cache for this stack's keys and values."""
        heads = (self._blocks[0].n_heads, self._blocks[0].head_dim) if self._blocks else (0, 0)
        return KVCache(len(self._blocks), num_slots, heads[0], capacity, heads[1], device=device, dtype=dtype)

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

    def run(self, x: Tensor, positions: Tensor, parts: Many[tuple[KVCache, Segment]]) -> Tensor:
        """Flat tokens x (N, d_model), segment after segment, at ``positions`` (N,) of their windows."""
        if self._rotary is None:
            return x
        x = x.float()
        turns = torch.view_as_complex(self._turns[positions])  # (N, 3, 1, head_dim / 2)
        sizes = [segment.num_tokens for _, segment in parts]
        for layer, block in enumerate(self._blocks):
            q, k, v = block.project(x, turns)
            if len(parts) == 1:
                cache, segment = parts[0]
                mixed = segment.attend(cache, layer, q, k, v)
            else:
                split = zip(parts, *(torch.split(one, sizes) for one in (q, k, v)), strict=True)
                mixed = torch.cat([segment.attend(cache, layer, *qkv) for (cache, segment), *qkv in split])
            x = block.finish(x, mixed)
        return x


class _Block:
    """A transformer block's weights as the engine runs them."""

    def __init__(self, block: TransformerBlock, dtype: torch.dtype) -> None:
        attention, feed_forward = block.self_attn, block.ffn
        device = attention.q_proj.weight.device
        self.n_heads, self.head_dim = attention.n_heads, cached_head_dim(device, attention.head_dim)
        self._dtype, self._kept_as = dtype, cache_dtype(device, dtype)
        order = _halves_side_by_side(self.n_heads, attention.head_dim).to(device)
        q, k = (Affine.of(one).with_rows(order) for one in (attention.q_proj, attention.k_proj))
        q = q.times(math.sqrt(self.head_dim / attention.head_dim))
        inputs = [one.after_scale(block.norm1.weight) for one in (q, k, Affine.of(attention.v_proj))]
        heads = self.n_heads, self.head_dim
        self._qkv = FusedLinear(*(one.with_heads(*heads) for one in inputs), dtype=dtype)
        self._out = FusedLinear(Affine.of(attention.out_proj).after_heads(*heads), dtype=dtype)
        self._w1 = FusedLinear(Affine.of(feed_forward.w1).after_scale(block.norm2.weight), dtype=dtype)
        self._w3 = FusedLinear(Affine.of(feed_forward.w3).after_scale(block.norm2.weight), dtype=dtype)
        self._w2 = FusedLinear(Affine.of(feed_forward.w2), dtype=dtype)

    def project(self, x: Tensor, turns: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of x (N, d_model), each (N, H, head_dim); the first two are turned."""
        qkv = self._qkv(normalise(x)).float().view(x.shape[0], 3, self.n_heads, -1, 2)
        turned = torch.view_as_real(torch.view_as_complex(qkv) * turns).flatten(-2)
        return turned.to(self._kept_as).unbind(1)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The block's output from its input x (N, d_model) and what attention gave (N, H, head_dim)."""
        x = self._out.added_to(mixed.reshape(len(x), -1), x)
        normalised = normalise(x).to(self._dtype)
        return self._w2.added_to(self._w3.times(normalised, self._w1.silu(normalised)), x)


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
