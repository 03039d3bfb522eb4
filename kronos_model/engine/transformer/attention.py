"""Attention whose result can be merged with the result over further keys.

Attention over two sets of keys is the average of both, weighted by the sums of their exponentiated scores:
so the keys that several queries share are read once for all of them, and each query's own keys separately.
"""

import math
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

QUERY_STEP = 4
"""Paths that read a prompt together are padded to a multiple of this: MKL has other kernels for 1 and 2."""
QUERY_BLOCK = 12
"""Paths of a block, where MKL's result depends on how many paths there are. In a block of this size, it does
not depend on a path's place (AVX2)."""
TILE_BARS = 64
"""Bars of a prompt whose attention is one call, whatever part of them a chunk computes."""
MAX_SCORES = 2**25
"""Scores of one product without the CPU's kernel: 128 MiB in float32."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, is_causal: bool = False
) -> "Mixed":
    """Queries q (B, H, n, hd) on keys and values (B, H, m, hd).

    ``mask`` is added to the scores and broadcasts to (B, H, n, m). ``is_causal`` (n = m) hides later keys.
    The kernels that also return the sums of their scores are not public. Without them, plain products
    compute the same (PyTorch 2.13: ``aten/src/ATen/native/cpu/FlashAttentionKernel.cpp``,
    ``aten/src/ATen/native/transformers/cuda/attention.cu``). Scores and their sums are float32 everywhere.
    """
    if has_kernel(q.device):
        return Mixed(
            *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, is_causal, attn_mask=mask
            )
        )
    if q.device.type == "cuda":
        bias = None if mask is None else _bias(mask, q, k.shape[2])
        out, weight, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, compute_log_sumexp=True, is_causal=is_causal
        )
        return Mixed(out, weight[..., : q.shape[2]])  # the kernel pads the weights to 32 queries
    if q.shape[:3].numel() * k.shape[2] > MAX_SCORES and (len(q) > 1 or (not is_causal and q.shape[2] > 1)):
        return _attend_in_halves(q, k, v, mask, is_causal=is_causal)
    scores = q.float() @ k.float().mT / math.sqrt(q.shape[-1])
    if is_causal:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    if mask is not None:
        scores = scores + mask
    return Mixed(scores.softmax(-1).to(v.dtype) @ v, scores.logsumexp(-1))


def _bias(mask: Tensor, q: Tensor, num_keys: int) -> Tensor:
    """The mask as CUDA's kernel takes it: of q's type and sizes, its rows a multiple of 8 numbers apart."""
    mask = mask.to(q.dtype)
    if num_keys % 8:
        mask = F.pad(mask, (0, -num_keys % 8))[..., :num_keys]
    return mask.expand(*q.shape[:3], num_keys)


def _attend_in_halves(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool) -> "Mixed":
    """The same as ``attend``, in two halves: of the batches, or if there is one batch, of its queries."""
    dim = 0 if len(q) > 1 else 2
    keys, values = ((x, x) if dim else x.chunk(2) for x in (k, v))
    masks = (mask, mask) if mask is None or mask.shape[dim] == 1 else mask.chunk(2, dim)
    halves = zip(q.chunk(2, dim), keys, values, masks, strict=True)
    outs, weights = zip(*(attend(*half, is_causal=is_causal) for half in halves), strict=True)
    return Mixed(torch.cat(outs, dim), torch.cat(weights, dim))


def attend_together(q: Tensor, k: Tensor, v: Tensor) -> "Mixed":
    """All queries q (N, H, hd) on all keys and values (H, m, hd): ``out`` (N, H, hd), ``weight`` (N, H)."""
    num_padded = -(-len(q) // QUERY_STEP) * QUERY_STEP
    size = num_padded if not has_kernel(q.device) or _any_number_is_alike() else QUERY_BLOCK
    num_added = -len(q) % size
    padded = F.pad(q, (0, 0, 0, 0, 0, num_added)) if num_added else q
    mixed = attend_by_group(torch.unflatten(padded, 0, (-1, size)).transpose(1, 2), k, v)
    out, weight = mixed.out.transpose(1, 2).flatten(0, 1), mixed.weight.transpose(1, 2).flatten(0, 1)
    return Mixed(out[: len(q)], weight[: len(q)])


@cache
def _any_number_is_alike() -> bool:
    """Whether a query has one result among 4 and among 8: with MKL's AVX-512 kernels, not with AVX2's."""
    q, k, v = torch.randn(3, 1, 2, 8, 64, generator=torch.Generator().manual_seed(0))
    return torch.equal(attend(q[:, :, 4:], k, v).out, attend(q, k, v).out[:, :, 4:])


def attend_by_group(q: Tensor, k: Tensor, v: Tensor) -> "Mixed":
    """Groups of queries q (G, H, n, hd), all on the same keys and values (H, m, hd).

    On the CPU each group is a product of its own, so that G does not change it.
    """
    if has_kernel(q.device):
        return attend(q, k.expand(len(q), *k.shape), v.expand(len(q), *v.shape))
    together = attend(q.transpose(0, 1).flatten(1, 2).unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0))
    outs, weights = (torch.unflatten(x[0], 1, (len(q), -1)) for x in (together.out, together.weight))
    return Mixed(outs.transpose(0, 1), weights.transpose(0, 1))


def attend_so_far(q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
    """Queries q (n, H, hd) of the bars from ``first`` on; each sees the keys (H, m, hd) up to its own bar.

    For the CPU. Bars are computed in tiles that begin at multiples of ``TILE_BARS``; a tile that is partly
    asked for is computed whole: so a bar's result does not depend on ``first`` and n. Keys that a tile's bars
    do not see must be finite. Returns (n, H, hd).
    """
    before = first % TILE_BARS
    after = -(before + len(q)) % TILE_BARS
    padded = F.pad(q, (0, 0, 0, 0, before, after)) if before or after else q
    outs = []
    for number, tile in enumerate(torch.split(padded.transpose(0, 1).unsqueeze(0), TILE_BARS, dim=2)):
        begin = first - before + number * TILE_BARS
        keys, values = k[None, :, : begin + TILE_BARS], v[None, :, : begin + TILE_BARS]
        mask = _later_hidden(begin, keys.shape[2])
        outs.append(attend(tile, keys, values, mask).out[0].transpose(0, 1))
    return torch.cat(outs)[before : before + len(q)]


@lru_cache(maxsize=32)  # the tiles of a prompt of 2048 bars
def _later_hidden(first: int, num_keys: int) -> Tensor:
    """(TILE_BARS, num_keys), −inf where a bar does not see a later one."""
    return mask_of(torch.ones(TILE_BARS, num_keys, dtype=torch.bool).triu(first + 1))


def mask_of(hidden: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """What is added to scores: −inf where they are hidden, else zero."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -math.inf)


class Mixed(NamedTuple):
    """The result of attention: ``out`` (B, H, n, hd) and ``weight`` (B, H, n), the logarithms of the sums."""

    out: Tensor
    weight: Tensor


def merge(first: Tensor, first_weight: Tensor, second: Tensor, second_weight: Tensor) -> Tensor:
    """Two results of the same queries on different keys, (…, hd) with weights (…), as one, in float32."""
    # PyTorch's own sigmoid rounds an element by its place in the batch.
    share = (first_weight - second_weight).exp_().add_(1).reciprocal_()
    return torch.lerp(first.float(), second.float(), share.unsqueeze(-1))


def has_kernel(device: torch.device) -> bool:
    """Whether torch's attention kernel for the CPU, which also returns the weights' logarithm, is here."""
    return device.type == "cpu" and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
