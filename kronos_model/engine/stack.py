"""A stack of transformer blocks over a flat batch of tokens, attention chunk by chunk over caches."""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kronos_model.engine.kv_cache import Chunk, KVCache
from kronos_model.engine.linear import FusedLinear
from kronos_model.layers import MultiHeadAttention, TransformerBlock, rotate


class _Block:
    """A transformer block's weights as the engine runs them."""

    def __init__(self, block: TransformerBlock) -> None:
        attention, feed_forward = block.self_attn, block.ffn
        self.n_heads = attention.n_heads
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.qkv = FusedLinear(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = FusedLinear(attention.out_proj)
        self.w1_w3 = FusedLinear(feed_forward.w1, feed_forward.w3)
        self.w2 = FusedLinear(feed_forward.w2)

    def feed_forward(self, x: Tensor) -> Tensor:
        gate, value = self.w1_w3(self.norm2(x)).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * value)


class BlockStack:
    """The model's transformer or the tokenizer's decoder, with its rotary tables for ``max_positions``."""

    def __init__(self, blocks: nn.ModuleList, max_positions: int) -> None:
        originals = [cast(TransformerBlock, block) for block in blocks]
        self._attentions = [block.self_attn for block in originals]
        self._blocks = [_Block(block) for block in originals]
        # Every block's rotary is the same.
        self._rotary = self._attentions[0].rotary.tables(max_positions) if originals else None

    def new_cache(self, num_paths: int, capacity: int) -> KVCache:
        """Room for a prompt and for ``capacity`` own bars of each path."""
        return new_cache(self._attentions, num_paths, capacity)

    def run(self, x: Tensor, chunks: Sequence[tuple[KVCache, Chunk]], positions: Tensor) -> Tensor:
        """Flat tokens x (N, d_model), chunk after chunk, at ``positions`` (N,) of their windows."""
        if self._rotary is None:
            return x
        cos, sin = (table[positions].unsqueeze(1) for table in self._rotary)  # (N, 1, head_dim)
        sizes = [chunk.num_tokens for _, chunk in chunks]
        for layer, block in enumerate(self._blocks):
            q, k, v = split_heads(block.qkv(block.norm1(x)), 3 * block.n_heads).chunk(3, dim=1)
            parts = zip(
                chunks,
                *(torch.split(one, sizes) for one in (rotate(q, cos, sin), rotate(k, cos, sin), v)),
                strict=True,
            )
            mixed = [chunk.attend(cache, layer, *qkv) for (cache, chunk), *qkv in parts]
            x = x + block.out(torch.cat(mixed).flatten(1))
            x = x + block.feed_forward(x)
        return x


def new_cache(attentions: Iterable[MultiHeadAttention], num_paths: int, capacity: int) -> KVCache:
    """A cache with one layer for each attention, of its type and on its device."""
    attentions = list(attentions)
    if not attentions:
        return KVCache(0, 0, 0, num_paths, capacity, like=torch.empty(0))
    first = attentions[0]
    like = first.k_proj.weight
    return KVCache(len(attentions), first.n_heads, first.head_dim, num_paths, capacity, like=like)


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(N, d_model) → (N, H, head_dim)."""
    return x.view(x.shape[0], n_heads, -1)
