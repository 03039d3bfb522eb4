"""The tokenizer as the engine runs it: lookbacks to tokens in chunks, and paths of one prompt to bars."""

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from kronos_model.engine.kv_cache import KVCache, PathsSegment, PromptSegment, Segment
from kronos_model.engine.linear import Affine, FusedLinear
from kronos_model.engine.stack import BlockStack
from kronos_model.tokenizer import KronosTokenizer


class TokenCoder:
    """Encoder and decoder of a tokenizer, with the weights as they were at construction.

    The encoder always multiplies in float32, whatever the decoder's ``dtype``: a token is made of the signs
    of its components.
    """

    def __init__(self, tokenizer: KronosTokenizer, dtype: torch.dtype = torch.float32) -> None:
        self._device = tokenizer.head.weight.device
        self._quantizer = tokenizer.tokenizer
        self._embed = FusedLinear(Affine.of(tokenizer.embed))
        self._encoder = BlockStack(tokenizer.encoder)
        self._quant_embed = FusedLinear(Affine.of(tokenizer.quant_embed))
        self._post_quant_embed = FusedLinear(Affine.of(tokenizer.post_quant_embed), dtype=dtype)
        self._decoder = BlockStack(tokenizer.decoder, dtype)
        self._head = FusedLinear(Affine.of(tokenizer.head), dtype=dtype)

    def encoder_cache(self, num_bars: int) -> KVCache:
        """Room for a whole lookback in the encoder."""
        return self._encoder.new_cache(1, num_bars, device=self._device)

    def encode(self, bars: Tensor, parts: Many[tuple[KVCache, PromptSegment]]) -> Tensor:
        """Scaled bars (N, 6), part after part, each following what its cache holds → tokens (N, 2)."""
        self._encoder.reserve_positions(max(segment.last for _, segment in parts))
        positions = [torch.arange(one.first, one.last, device=self._device) for _, one in parts]
        x = self._encoder.run(self._embed(bars), torch.cat(positions), parts)
        return torch.stack(self._quantizer.encode(self._quant_embed(x)), dim=-1)

    def decode_prompt(self, tokens: Tensor) -> KVCache:
        """The decoder's keys and values of a prompt's tokens (P, 2)."""
        length = len(tokens)
        cache = self._decoder.new_cache(1, length, device=self._device)
        if length:
            self._decoder.reserve_positions(length)
            self._run_decoder(
                tokens, torch.arange(length, device=self._device), cache, PromptSegment(0, 0, length)
            )
        return cache

    def decode_paths(self, tokens: Tensor, prompt_length: int, prompt: KVCache) -> Tensor:
        """Tokens of paths (S, H, 2) that follow a prompt → scaled bars (S, H, 6)."""
        num_paths, horizon, _ = tokens.shape
        self._decoder.reserve_positions(prompt_length + horizon)
        positions = torch.arange(prompt_length, prompt_length + horizon, device=self._device).repeat(
            num_paths
        )
        segment = PathsSegment(num_paths, horizon, 0, (0, prompt_length))
        x = self._run_decoder(tokens.flatten(0, 1), positions, prompt, segment)
        return self._head(x).float().view(num_paths, horizon, -1)

    def _run_decoder(self, tokens: Tensor, positions: Tensor, cache: KVCache, segment: Segment) -> Tensor:
        x = self._post_quant_embed(self._quantizer.dequantize(tokens[:, 0], tokens[:, 1]))
        return self._decoder.run(x, positions, [(cache, segment)])
