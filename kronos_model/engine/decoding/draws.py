"""Draws whose noise is counted, by PyTorch's operations, and the check of a kernel that does the same."""

from collections.abc import Callable

import torch
from torch import Tensor

from kronos_model.engine.decoding.noise import counter_noise
from kronos_model.engine.decoding.sampling import RowParams, sample
from kronos_model.engine.generation import SamplingParams

Draw = Callable[[Tensor, RowParams, Tensor, Tensor, Tensor, int], Tensor]
"""Tokens (R,) from logits (R, V), parameters, and seed, path and step of each row, each (R,) int64; last is
0 for s1 and 1 for s2."""


def draw(logits: Tensor, params: RowParams, seed: Tensor, path: Tensor, step: Tensor, number: int) -> Tensor:
    """A draw on any device."""
    return sample(logits, params, counter_noise(seed, path, step, number, logits.shape[-1]))


def check_draw(kernel: Draw, device: torch.device, vocabulary: int = 1024) -> None:
    """Raise ``RuntimeError`` unless a kernel draws what ``draw`` draws, with all kinds of parameters."""
    rows = [
        SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
        for temperature in (0.1, 1.0, 2.0)
        for top_k in (0, 1, 7, 2 * vocabulary)
        for top_p in (1.0, 0.9, 0.3)
    ]
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(len(rows), vocabulary, generator=generator)
    seed = torch.randint(2**63 - 1, (len(rows),), generator=generator)
    path = torch.arange(len(rows), device=device)
    for number in (0, 1):
        ours, theirs = (
            one(logits.to(device), RowParams.of(rows, device), seed.to(device), path, 3 * path, number)
            for one in (draw, kernel)
        )
        if not torch.equal(ours, theirs):
            raise RuntimeError("it draws other tokens")
