"""The tokenizer as the engine runs it: lookbacks to tokens in chunks, and paths of prompts to bars."""

from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.engine.chunks.packed import FlatSegment, RunPlan
from kronos_model.engine.chunks.transfer import joined, to_device
from kronos_model.engine.scheduling.runs import Run, SlotSpan, cut
from kronos_model.engine.transformer.kv_cache import KVCache, PathsSegment, PromptSegment, Segment
from kronos_model.engine.transformer.linear import Affine, FusedLinear
from kronos_model.engine.transformer.stack import BlockStack
from kronos_model.tokenizer import KronosTokenizer

MAX_BARS = 1024
"""Bars that the decoder computes at once on the CPU, with those of prompts; a single series may have more."""
MAX_PACKED_BARS = 16384


class CodingPlan(NamedTuple):
    """The positions of N bars in their windows, and if attention is packed, one plan of it."""

    positions: Tensor  # (N,)
    packed: tuple[RunPlan, ...]


@dataclass(eq=False)
class DecodedPrompt:
    """The tokens (P, 2) that paths follow. Unless packed, the cache keeps their keys and values."""

    tokens: Tensor
    cache: KVCache
    is_cached: bool = False


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
        self._embed = FusedLinear(Affine.of(tokenizer.embed))
        self._encoder = BlockStack(tokenizer.encoder)
        self._quant_embed = FusedLinear(Affine.of(tokenizer.quant_embed))
        self._post_quant_embed = FusedLinear(Affine.of(tokenizer.post_quant_embed))
        self._decoder = BlockStack(tokenizer.decoder)
        self._head = FusedLinear(Affine.of(tokenizer.head))
        self._no_cache = self._encoder.new_cache(1, 0, device=self._device)

    def encoder_cache(self, num_bars: int) -> KVCache:
        """Room for what is kept of a lookback in the encoder."""
        return self._no_cache if self._packs else self._encoder.new_cache(1, num_bars, device=self._device)

    def plan_encoding(self, segments: Many[PromptSegment]) -> CodingPlan:
        """What ``encode`` needs on the device. If packed, all segments begin with the first bar."""
        positions = [np.arange(one.first, one.last) for one in segments]
        return self._plan(positions, _flat_runs([one.last for one in segments]))

    def encode(self, bars: Tensor, parts: Many[tuple[KVCache, PromptSegment]], plan: CodingPlan) -> Tensor:
        """Scaled bars (N, 6), part after part, each following what its cache holds → tokens (N, 2)."""
        self._encoder.reserve_positions(max(segment.last for _, segment in parts))
        x = self._encoder.run(self._embed(bars), plan.positions, self._packed(plan) or parts)
        return torch.stack(self._quantizer.encode(self._quant_embed(x)), dim=-1)

    def prompt(self, tokens: Tensor) -> DecodedPrompt:
        """A prompt for ``decode``."""
        if self._packs:
            return DecodedPrompt(tokens, self._no_cache)
        return DecodedPrompt(tokens, self._decoder.new_cache(1, len(tokens), device=self._device))

    def decode(self, series: Many[tuple[DecodedPrompt, Many[Tensor]]]) -> list[Tensor]:
        """Prompts and the tokens (H, 2) of each path that follows → scaled bars, (n, 6) in parts."""
        most = MAX_PACKED_BARS if self._packs else MAX_BARS
        batches = cut(series, lambda one: len(one[0].tokens) + sum(map(len, one[1])), most)
        return [self._decode(batch) for batch in batches]

    def _decode(self, series: Many[tuple[DecodedPrompt, Many[Tensor]]]) -> Tensor:
        new = dict.fromkeys(one for one, _ in series if not one.is_cached and len(one.tokens))
        prompts = {prompt: place for place, prompt in enumerate(new)}
        following = [(prompt, own) for prompt, paths in series for own in paths]
        plan = to_device(
            self._plan(
                [np.arange(len(one.tokens)) for one in prompts]
                + [len(prompt.tokens) + np.arange(len(own)) for prompt, own in following],
                _flat_runs(
                    [len(one.tokens) for one in prompts],
                    [(prompts.get(one), len(own)) for one, own in following],
                ),
            ),
            self._device,
        )
        segments: list[tuple[KVCache, Segment]] = [
            *((one.cache, PromptSegment(0, 0, len(one.tokens))) for one in prompts),
            *(
                (prompt.cache, PathsSegment(len(paths), len(paths[0]), 0, (0, len(prompt.tokens))))
                for prompt, paths in series
            ),
        ]
        tokens = torch.cat([*(one.tokens for one in prompts), *(own for _, own in following)])  # (N, 2)
        self._decoder.reserve_positions(max(len(prompt.tokens) + len(own) for prompt, own in following))
        x = self._post_quant_embed(self._quantizer.dequantize(tokens[:, 0], tokens[:, 1]))
        x = self._decoder.run(x, plan.positions, self._packed(plan) or segments)
        for prompt in prompts:
            prompt.is_cached = not self._packs
        return self._head(x[sum(len(one.tokens) for one in prompts) :])

    def _plan(self, positions: list[NDArray[np.int64]], runs: list[Run]) -> CodingPlan:
        packed = (RunPlan.of(runs),) if self._packs else ()
        return CodingPlan(joined(positions), packed)

    def _packed(self, plan: CodingPlan) -> list[tuple[KVCache, Segment]]:
        return [(self._no_cache, FlatSegment(packed, torch.float32)) for packed in plan.packed]


def _flat_runs(alone: Iterable[int], following: Iterable[tuple[int | None, int]] = ()) -> list[Run]:
    """Runs of these lengths in one batch, then runs that each follow one of them."""
    runs: list[Run] = []
    num_rows = 0
    spans: list[SlotSpan] = []
    for number, (before, length) in enumerate([*((None, one) for one in alone), *following]):
        spans.append((0, num_rows, num_rows + length))
        own = spans[number]
        runs.append(Run(num_rows, length, (own,) if before is None else (spans[before], own)))
        num_rows += length
    return runs
