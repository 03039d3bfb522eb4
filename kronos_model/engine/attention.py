"""Attention whose result can be merged with the result over further keys.

Attention over two sets of keys is the average of both, weighted by the sums of their exponentiated scores:
so the keys that several queries share are read once for all of them, and each query's own keys separately.
"""

import math

import torch
from torch import Tensor


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, is_causal: bool = False
) -> "Mixed":
    """Queries q (B, H, n, hd) on keys and values (B, H, m, hd).

    ``mask`` is added to the scores and broadcasts to (B, H, n, m). ``is_causal`` (n = m) hides later keys.
    The kernel that also returns the sums of its scores is not public. Without it, plain products compute
    the same (PyTorch 2.13: ``aten/src/ATen/native/cpu/FlashAttentionKernel.cpp``).
    """
    if has_kernel(q.device):
        return Mixed(
            *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, is_causal, attn_mask=mask
            )
        )
    scores = (q @ k.mT).float() / math.sqrt(q.shape[-1])
    if is_causal:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    if mask is not None:
        scores = scores + mask
    return Mixed(scores.softmax(-1).to(v.dtype) @ v, scores.logsumexp(-1))


class Mixed:
    """The result of attention: ``out`` (B, H, n, hd) and ``weight`` (B, H, n), the logarithms of the sums."""

    __slots__ = ("out", "weight")

    def __init__(self, out: Tensor, weight: Tensor) -> None:
        self.out, self.weight = out, weight


def merge(first: Tensor, first_weight: Tensor, second: Tensor, second_weight: Tensor) -> Tensor:
    """Two results of the same queries on different keys, (…, hd) with weights (…), as one, in float32."""
    share = torch.sigmoid(second_weight - first_weight).unsqueeze(-1)
    return torch.lerp(first.float(), second.float(), share)


def has_kernel(device: torch.device) -> bool:
    """Whether torch's attention kernel for the CPU, which also returns the weights' logarithm, is here."""
    return device.type == "cpu" and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
