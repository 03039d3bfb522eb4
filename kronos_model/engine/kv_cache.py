"""Keys and values of one sequence in one stack of attention layers.

The prompt (the lookback) is the same for all paths of a series: its keys and values are held once and read
once, as one product for all paths. Each path's own bars follow it. S = paths, H = heads, P = prompt length,
n = new bars, M = own bars after them, hd = head_dim.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

MAX_SCORE_ROWS = 2048
"""Queries per attention product; bounds the memory of the scores when whole windows are recomputed."""


class KVCache:
    """Room for ``num_layers`` layers of a prompt and of ``num_paths × capacity`` own bars."""

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        num_paths: int,
        capacity: int,
        like: Tensor,
    ) -> None:
        own_shape = (num_layers, num_paths, num_heads, capacity, head_dim)
        self._own_k, self._own_v = like.new_empty(own_shape), like.new_empty(own_shape)
        empty = like.new_empty(num_heads, 0, head_dim)
        self._prompt: list[tuple[Tensor, Tensor]] = [(empty, empty)] * num_layers

    def write_prompt(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Replace the prompt's keys and values, each (H, P, hd)."""
        self._prompt[layer] = (k, v)

    def write_own(self, layer: int, k: Tensor, v: Tensor, start: int) -> None:
        """Put keys and values (S, H, n, hd) of own bars at ``start``."""
        self._own_k[layer, :, :, start : start + k.shape[2]] = k
        self._own_v[layer, :, :, start : start + k.shape[2]] = v

    def attend(self, layer: int, q: Tensor, own_length: int) -> Tensor:
        """The newest n queries (S, H, n, hd) on the prompt and on ``own_length`` own bars → (S, H, n, hd).

        Query i of n sees all of the prompt and the own bars up to its own position.
        """
        prompt_k, prompt_v = self._prompt[layer]
        own_k, own_v = self._own_k[layer, :, :, :own_length], self._own_v[layer, :, :, :own_length]
        paths_at_once = max(1, MAX_SCORE_ROWS // q.shape[2])
        if q.shape[0] <= paths_at_once:
            return _attend(q, prompt_k, prompt_v, own_k, own_v)
        parts = (torch.split(tensor, paths_at_once) for tensor in (q, own_k, own_v))
        return torch.cat([_attend(a, prompt_k, prompt_v, b, c) for a, b, c in zip(*parts, strict=True)])


def _attend(q: Tensor, prompt_k: Tensor, prompt_v: Tensor, own_k: Tensor, own_v: Tensor) -> Tensor:
    """One softmax over the shared prompt and each path's own bars."""
    num_paths, num_heads, num_new, head_dim = q.shape
    prompt_length, own_length = prompt_k.shape[1], own_k.shape[2]
    q = q / math.sqrt(head_dim)
    by_head = q.transpose(0, 1).reshape(num_heads, num_paths * num_new, head_dim)
    on_prompt = by_head @ prompt_k.mT  # (H, S · n, P)
    on_own = q @ own_k.mT  # (S, H, n, M)
    if num_new > 1 and own_length > 1:
        hidden = torch.ones(num_new, own_length, dtype=torch.bool, device=q.device)
        on_own = on_own.masked_fill(hidden.triu(own_length - num_new + 1), -math.inf)
    by_path = on_prompt.view(num_heads, num_paths, num_new, prompt_length).transpose(0, 1)
    weights = torch.cat((by_path, on_own), dim=-1).softmax(-1)  # (S, H, n, P + M)
    prompt_weights = weights[..., :prompt_length].transpose(0, 1).reshape(on_prompt.shape)
    from_prompt = (prompt_weights @ prompt_v).view(num_heads, num_paths, num_new, head_dim)
    return from_prompt.transpose(0, 1) + weights[..., prompt_length:] @ own_v


@dataclass(frozen=True)
class PromptChunk:
    """A whole prompt in a flat batch of tokens; its keys and values replace what the cache held."""

    length: int

    @property
    def num_tokens(self) -> int:
        return self.length

    @property
    def own_length(self) -> int:
        """Own bars in the cache once this chunk is stored."""
        return 0

    def store(self, cache: KVCache, layer: int, k: Tensor, v: Tensor) -> None:
        """Put k and v (P, H, hd) into the cache."""
        cache.write_prompt(layer, k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous())

    def attend(self, cache: KVCache, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v (P, H, hd) → (P, H, hd), causal; keys and values stay in the cache."""
        self.store(cache, layer, k, v)
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # (1, H, P, hd)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)


@dataclass(frozen=True)
class OwnChunk:
    """``length`` new bars of every path in a flat batch, path by path, put at ``start`` of the own bars."""

    num_paths: int
    length: int
    start: int

    @property
    def num_tokens(self) -> int:
        return self.num_paths * self.length

    @property
    def own_length(self) -> int:
        """Own bars in the cache once this chunk is stored."""
        return self.start + self.length

    def _by_path(self, x: Tensor) -> Tensor:
        """(S · n, H, hd) → (S, H, n, hd)."""
        return x.reshape(self.num_paths, self.length, *x.shape[1:]).transpose(1, 2)

    def store(self, cache: KVCache, layer: int, k: Tensor, v: Tensor) -> None:
        """Put k and v (S · n, H, hd) into the cache."""
        cache.write_own(layer, self._by_path(k), self._by_path(v), self.start)

    def attend(self, cache: KVCache, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v (S · n, H, hd) → (S · n, H, hd); keys and values stay in the cache."""
        self.store(cache, layer, k, v)
        mixed = cache.attend(layer, self._by_path(q), self.own_length)
        return mixed.transpose(1, 2).reshape(q.shape)


Chunk = PromptChunk | OwnChunk
