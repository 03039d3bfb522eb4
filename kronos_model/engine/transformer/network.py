"""The model as the engine runs it: weights folded and fused, keys and values in slots.

A batch has N tokens in a row; a decode step has R rows, one a path.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as Many

import torch
from torch import Tensor
from torch.nn import functional as F

from kronos_model.engine.transformer.embedding import BarEmbedding
from kronos_model.engine.transformer.kv_cache import (
    DecodeRows,
    KVCache,
    Segment,
    cache_dtype,
    cached_head_dim,
)
from kronos_model.engine.transformer.linear import Affine, FusedLinear
from kronos_model.engine.transformer.stack import BlockStack, normalise
from kronos_model.model import DEPENDENCY_HEADS, Kronos

Choose = Callable[[int, Tensor], Tensor]
"""Chooses tokens (R,) from logits (R, vocabulary); the first argument is 0 for s1 and 1 for s2."""


class Network:
    """Computes on its device and multiplies in ``dtype``; copies the weights at construction.

    ``capacity`` bars fit a slot; positions are below ``max_positions``.
    """

    @torch.inference_mode()
    def __init__(
        self, model: Kronos, *, num_slots: int, capacity: int, max_positions: int, dtype: torch.dtype
    ) -> None:
        self.device = model.head.proj_s1.weight.device
        self.s1_vocabulary = model.head.proj_s1.out_features
        self.s2_vocabulary = model.head.proj_s2.out_features
        self.embedding = BarEmbedding(model)
        self.kept_as = kept_as = cache_dtype(self.device, dtype)
        self._transformer = BlockStack(model.transformer, dtype)
        self._transformer.reserve_positions(max_positions)
        self._blocks = self._transformer.new_cache(num_slots, capacity, device=self.device, dtype=kept_as)
        self._norm_scale = model.norm.weight.detach().clone()

        layer = model.dep_layer
        attention = layer.cross_attn
        heads = DEPENDENCY_HEADS, cached_head_dim(self.device, attention.head_dim)
        self._dependency = KVCache(
            1, num_slots, heads[0], capacity, heads[1], device=self.device, dtype=kept_as
        )
        self._dependency_norm_scale = layer.norm.weight.detach().clone()
        k, v = (Affine.of(one).with_heads(*heads) for one in (attention.k_proj, attention.v_proj))
        self._dependency_kv = FusedLinear(k, v, dtype=dtype)
        self._dependency_out = FusedLinear(Affine.of(attention.out_proj).after_heads(*heads), dtype=dtype)
        # The sibling query is a row of the embedding, projected: one table serves all steps.
        q = Affine.of(attention.q_proj).times(math.sqrt(heads[1] / attention.head_dim)).with_heads(*heads)
        queries = F.linear(model.embedding.emb_s1.weight.detach(), q.weight, q.bias)
        self._sibling_queries = queries.view(-1, *heads).to(kept_as)  # (vocabulary, H, head_dim)
        self._s1_head = FusedLinear(Affine.of(model.head.proj_s1), dtype=dtype)
        self._s2_head = FusedLinear(Affine.of(model.head.proj_s2), dtype=dtype)

    def copy_slot(self, slot: int, num_bars: int) -> list[Tensor]:
        """The first bars of a slot's keys and values, in the host's memory."""
        parts = (self._blocks.k, self._blocks.v, self._dependency.k, self._dependency.v)
        return [part[:, slot, :, :num_bars].to("cpu", copy=True) for part in parts]

    def fill_slot(self, slot: int, copied: Many[Tensor]) -> None:
        """Put what ``copy_slot`` returned into a slot."""
        parts = (self._blocks.k, self._blocks.v, self._dependency.k, self._dependency.v)
        for part, bars in zip(parts, copied, strict=True):
            part[:, slot, :, : bars.shape[2]] = bars.to(part.device)

    def fill(self, tokens: Tensor, calendar: Tensor, positions: Tensor, segments: Many[Segment]) -> None:
        """Put the keys and values of tokens (N, 2) at ``positions`` (N,) of their windows into the cache."""
        context = self._context(tokens, calendar, positions, segments)
        sizes = [segment.num_tokens for segment in segments]
        kv = (torch.split(one, sizes) for one in self._keys_and_values(context))
        for segment, k, v in zip(segments, *kv, strict=True):
            segment.store(self._dependency, 0, k, v)

    def next_tokens(
        self, tokens: Tensor, calendar: Tensor, positions: Tensor, segment: DecodeRows, choose: Choose
    ) -> Tensor:
        """Put the newest tokens (R, 2) of all paths into the cache; return those that follow (R, 2)."""
        context = self._context(tokens, calendar, positions, [segment])  # (R, d_model)
        segment.store(self._dependency, 0, *self._keys_and_values(context))
        s1 = choose(0, self._s1_head(context))
        informed = segment.read(self._dependency, 0, self._sibling_queries[s1])
        informed = self._dependency_out(informed.flatten(1))
        s2 = choose(1, self._s2_head(normalise(context + informed) * self._dependency_norm_scale))
        return torch.stack((s1, s2), dim=-1)

    def _context(
        self, tokens: Tensor, calendar: Tensor, positions: Tensor, segments: Many[Segment]
    ) -> Tensor:
        x = self.embedding(tokens, calendar)
        x = self._transformer.run(x, positions, [(self._blocks, segment) for segment in segments])
        return normalise(x) * self._norm_scale

    def _keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the dependency-aware layer, each (N, H, head_dim)."""
        both = self._dependency_kv(context).to(self.kept_as)
        k, v = both.view(len(context), 2, DEPENDENCY_HEADS, -1).unbind(1)
        return k, v
