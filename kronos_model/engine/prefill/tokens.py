"""The tokenizer as the engine runs it: lookbacks to tokens in chunks, and paths of prompts to bars."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kronos_model.engine.prefill.inputs import DecodedPrompt, joined, to_device
from kronos_model.engine.prefill.packed import FlatSegment, PackedPlan
from kronos_model.engine.scheduling.path_table import cut
from kronos_model.engine.transformer.kv_cache import (
    KVCache,
    PathsSegment,
    PromptSegment,
    RowSpan,
    Segment,
    SlotSpan,
)
from kronos_model.engine.transformer.linear import Affine, FusedLinear
from kronos_model.engine.transformer.network import BlockStack
from kronos_model.tokenizer import KronosTokenizer

MAX_BARS = 1024
"""Bars that the decoder computes at once on the CPU, with those of prompts; a single series may have more."""
MAX_PACKED_BARS = 16384


class TokenCoder:
    """Encoder and decoder of a tokenizer, with the weights as they were at construction.

    Both multiply in float32, whatever the model does: a token is made of the signs of its components, and a
    close must not be off by more than its token. ``packs``: attention is computed for all series together,
    and nothing is kept.
    """

    def __init__(self, tokenizer: KronosTokenizer, *, packs: bool) -> None:
        self._device = tokenizer.head.weight.device
        self._packs = packs
        self._quantizer = tokenizer.tokenizer
        self._embed = FusedLinear(Affine.from_linear(tokenizer.embed))
        self._encoder = BlockStack(tokenizer.encoder)
        self._quant_embed = FusedLinear(Affine.from_linear(tokenizer.quant_embed))
        self._post_quant_embed = FusedLinear(Affine.from_linear(tokenizer.post_quant_embed))
        self._decoder = BlockStack(tokenizer.decoder)
        self._head = FusedLinear(Affine.from_linear(tokenizer.head))
        self._no_cache = self._encoder.new_cache(1, 0, device=self._device)

    def encoder_cache(self, num_bars: int) -> KVCache:
        """Room for what is kept of a lookback in the encoder."""
        return self._no_cache if self._packs else self._encoder.new_cache(1, num_bars, device=self._device)

    def encode(
        self,
        bars: Tensor,
        positions: Tensor,
        segments: Sequence[PromptSegment],
        caches: Sequence[KVCache],
        packed: tuple[PackedPlan, ...] = (),
    ) -> Tensor:
        """Scaled bars (N, 6) at ``positions`` (N,), segment after segment → tokens (N, 2).

        Each segment follows what its cache holds. If packed, all begin with the first bar.
        """
        for segment in segments:
            self._encoder.reserve_positions(segment.last)
        x = self._run(self._encoder, self._embed(bars), positions, segments, caches, packed)
        return torch.stack(self._quantizer.encode(self._quant_embed(x)), dim=-1)

    def prompt(self, tokens: Tensor) -> DecodedPrompt:
        """A prompt for ``decode``."""
        if self._packs:
            return DecodedPrompt(tokens, self._no_cache)
        return DecodedPrompt(tokens, self._decoder.new_cache(1, len(tokens), device=self._device))

    def decode(self, series: Sequence[tuple[DecodedPrompt, Sequence[Tensor]]]) -> Tensor:
        """Prompts and the tokens (H, 2) of each path that follows → scaled bars (n, 6), path after path."""
        sizes = [len(prompt.tokens) + len(paths) * len(paths[0]) for prompt, paths in series]
        batches = cut(series, sizes, MAX_PACKED_BARS if self._packs else MAX_BARS)
        return torch.cat([*map(self._decode, batches)])

    def _decode(self, series: Sequence[tuple[DecodedPrompt, Sequence[Tensor]]]) -> Tensor:
        spans: dict[DecodedPrompt, SlotSpan] = {}  # rows of prompts that are not cached
        tokens: list[Tensor] = []
        positions, row_spans = [], []
        segments: list[Segment] = []
        caches: list[KVCache] = []
        num_rows = 0
        for prompt, _ in series:
            length = len(prompt.tokens)
            if prompt.is_cached or prompt in spans or not length:
                continue
            spans[prompt] = (0, num_rows, num_rows + length)
            tokens.append(prompt.tokens)
            positions.append(np.arange(length))
            row_spans.append(RowSpan(num_rows, length, (spans[prompt],)))
            segments.append(PromptSegment(0, 0, length))
            caches.append(prompt.cache)
            num_rows += length
        num_prompt_rows = num_rows
        for prompt, paths in series:
            length = len(prompt.tokens)
            self._decoder.reserve_positions(length + len(paths[0]))
            segments.append(PathsSegment(len(paths), len(paths[0]), 0, (0, length)))
            caches.append(prompt.cache)
            for own in paths:
                before = (spans[prompt],) if prompt in spans else ()
                tokens.append(own)
                positions.append(np.arange(length, length + len(own)))
                row_spans.append(RowSpan(num_rows, len(own), (*before, (0, num_rows, num_rows + len(own)))))
                num_rows += len(own)
        plan = joined(positions), (PackedPlan.from_row_spans(row_spans),) if self._packs else ()
        at, packed = to_device(plan, self._device)
        s1, s2 = torch.cat(tokens).unbind(1)
        x = self._post_quant_embed(self._quantizer.dequantize(s1, s2))
        x = self._run(self._decoder, x, at, segments, caches, packed)
        for prompt in spans:
            prompt.is_cached = not self._packs
        return self._head(x[num_prompt_rows:])

    def _run(
        self,
        stack: BlockStack,
        x: Tensor,
        positions: Tensor,
        segments: Sequence[Segment],
        caches: Sequence[KVCache],
        packed: tuple[PackedPlan, ...],
    ) -> Tensor:
        if packed:
            segments, caches = [FlatSegment(packed[0], torch.float32)], [self._no_cache]
        return stack.run(x, positions, segments, caches)
