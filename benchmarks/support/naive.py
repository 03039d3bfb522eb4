"""The naive loop: every step recomputes the whole window of every path, like the reference.

Benchmarks compare the engine's speed with it, tests the engine's forecasts.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kronos_model.bars.columns import Scaling
from kronos_model.engine.decoding.sampling import RowParams, sample
from kronos_model.engine.generation import SeriesRequest
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer


class NaiveForecaster:
    """Forecasts series of equal lookback and horizon as one batch, step by step."""

    def __init__(
        self, model: Kronos, tokenizer: KronosTokenizer, requests: Sequence[SeriesRequest], max_context: int
    ) -> None:
        self.model, self.tokenizer, self.max_context = model, tokenizer, max_context
        self.requests = requests
        self.horizon = requests[0].horizon
        paths = requests[0].sampling.sample_count
        self.scalings = [Scaling.fit(request.bars) for request in requests]
        scaled = [s.apply(r.bars, 5) for s, r in zip(self.scalings, requests, strict=True)]
        self.device = model.head.proj_s1.weight.device
        x = torch.from_numpy(np.stack(scaled)).repeat_interleave(paths, dim=0).to(self.device)  # (R, T, 6)
        stamps = [np.concatenate((request.stamps, request.future_stamps)) for request in requests]
        both = torch.from_numpy(np.stack(stamps)).repeat_interleave(paths, dim=0)
        self.stamps = both.to(self.device)  # (R, T + H, 5)
        self.generators = [torch.Generator().manual_seed(r.sampling.seed) for r in requests]
        rows = [request.sampling for request in requests for _ in range(paths)]
        self.params = RowParams.from_rows(rows, self.device)
        with torch.inference_mode():
            s1, s2 = tokenizer.encode(x)
            self.tokens = torch.stack((s1, s2))  # type: ignore[arg-type]  # (2, R, T)

    @torch.inference_mode()
    def step(self) -> None:
        """Generate the next bar of every path."""
        length = self.tokens.shape[-1]
        window = slice(max(0, length - self.max_context), length)
        s1_logits, context = self.model.decode_s1(*self.tokens[..., window], self.stamps[:, window])
        s1 = sample(s1_logits[:, -1], self.params, self._noise(s1_logits.shape[-1])).unsqueeze(-1)
        s2_logits = self.model.decode_s2(context, s1)
        s2 = sample(s2_logits[:, -1], self.params, self._noise(s2_logits.shape[-1])).unsqueeze(-1)
        self.tokens = torch.cat((self.tokens, torch.stack((s1, s2))), dim=-1)

    @torch.inference_mode()
    def paths(self) -> list[NDArray[np.float32]]:
        """Unscaled paths of each series, (S, H, 6), after the last step."""
        window = self.tokens[..., -self.max_context :]
        bars = self.tokenizer.decode((window[0], window[1]))[:, -self.horizon :].cpu().numpy()
        per_series = np.split(bars, len(self.requests))
        return [scaling.undo(part) for scaling, part in zip(self.scalings, per_series, strict=True)]

    def _noise(self, vocabulary: int) -> Tensor:
        paths = self.requests[0].sampling.sample_count
        noise = [torch.empty(paths, vocabulary).exponential_(generator=g) for g in self.generators]
        return torch.cat(noise).to(self.device)
