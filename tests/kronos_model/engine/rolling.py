"""The rolling context policy without a cache: every bar attends to the newest ones up to itself."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from benchmarks.support.naive import NaiveForecaster
from kronos_model.engine.decoding.sampling import sample
from kronos_model.engine.generation import SeriesRequest
from kronos_model.layers import TransformerBlock, rotate
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer


class RollingForecaster(NaiveForecaster):
    """Starts with the newest ``max_context`` bars of the lookback; positions count from there."""

    def __init__(
        self, model: Kronos, tokenizer: KronosTokenizer, request: SeriesRequest, max_context: int
    ) -> None:
        super().__init__(model, tokenizer, [request], max_context)
        self.tokens = self.tokens[..., -max_context:]
        self.stamps = self.stamps[:, -self.tokens.shape[-1] - request.horizon :]

    @torch.inference_mode()
    def step(self) -> None:
        length = self.tokens.shape[-1]
        x = self.model.embed(*self.tokens, self.stamps[:, :length])
        for block in self.model.transformer:
            x = banded(block, x, self.max_context)
        context = self.model.norm(x)
        s1_logits = self.model.head.proj_s1(context)
        s1 = sample(s1_logits[:, -1], self.params, self._noise(s1_logits.shape[-1])).unsqueeze(-1)
        s2_logits = self.model.decode_s2(context[:, -self.max_context :], s1)
        s2 = sample(s2_logits[:, -1], self.params, self._noise(s2_logits.shape[-1])).unsqueeze(-1)
        self.tokens = torch.cat((self.tokens, torch.stack((s1, s2))), dim=-1)


def banded(block: TransformerBlock, x: Tensor, width: int) -> Tensor:
    """The block with attention of each position to the last ``width`` up to itself."""
    attention, normed = block.self_attn, block.norm1(x)
    q, k, v = attention.project(normed, normed)
    cos, sin = (table.unsqueeze(1) for table in attention.rotary.tables(q.shape[1]))
    distance = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
    seen = (distance >= 0) & (distance < width)
    q, k, v = (part.transpose(1, 2) for part in (rotate(q, cos, sin), rotate(k, cos, sin), v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    x = x + attention.merge(mixed.transpose(1, 2))
    return x + block.ffn(block.norm2(x))


def rolling_paths(
    model: Kronos, tokenizer: KronosTokenizer, request: SeriesRequest, max_context: int
) -> NDArray[np.float32]:
    """All paths of one series, (S, H, 6)."""
    forecaster = RollingForecaster(model, tokenizer, request, max_context)
    for _ in range(request.horizon):
        forecaster.step()
    return forecaster.paths()[0]
