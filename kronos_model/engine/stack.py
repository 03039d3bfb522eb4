"""A stack of transformer blocks over a flat batch of tokens, attention chunk by chunk over caches."""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from kronos_model.engine.kv_cache import Chunk, KVCache
from kronos_model.layers import MultiHeadAttention, TransformerBlock, rotate


class BlockStack:
    """The model's transformer or the tokenizer's decoder, with its rotary tables for ``max_positions``."""

    def __init__(self, blocks: nn.ModuleList, max_positions: int) -> None:
        self._blocks = [cast(TransformerBlock, block) for block in blocks]
        # Every block's rotary is the same.
        self._rotary = self._blocks[0].self_attn.rotary.tables(max_positions) if self._blocks else None

    def new_cache(self, num_paths: int, capacity: int) -> KVCache:
        """Room for a prompt and for ``capacity`` own bars of each path."""
        return new_cache([block.self_attn for block in self._blocks], num_paths, capacity)

    def run(self, x: Tensor, chunks: Sequence[tuple[KVCache, Chunk]], positions: Tensor) -> Tensor:
        """Flat tokens x (N, d_model), chunk after chunk, at ``positions`` (N,) of their windows → the same."""
        if self._rotary is None:
            return x
        cos, sin = (table[positions].unsqueeze(1) for table in self._rotary)  # (N, 1, head_dim)
        sizes = [chunk.num_tokens for _, chunk in chunks]
        for layer, block in enumerate(self._blocks):
            attention = block.self_attn
            normed = block.norm1(x)
            q = rotate(split_heads(attention.q_proj(normed), attention.n_heads), cos, sin)
            k = rotate(split_heads(attention.k_proj(normed), attention.n_heads), cos, sin)
            v = split_heads(attention.v_proj(normed), attention.n_heads)
            parts = zip(chunks, *(torch.split(one, sizes) for one in (q, k, v)), strict=True)
            mixed = [chunk.attend(cache, layer, *qkv) for (cache, chunk), *qkv in parts]
            x = x + attention.out_proj(torch.cat(mixed).flatten(1))
            x = x + block.ffn(block.norm2(x))
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
