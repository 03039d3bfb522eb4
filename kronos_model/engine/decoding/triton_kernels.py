"""Kernels for a decode step on a GPU: the draw of a token, and the attention of each row.

``draw`` computes what ``sampling`` does in some 80 operations. ``read`` reads of each row its shared prompt
and its own bars only; it computes in float32, and a row's result does not depend on other rows.

Needs Triton, which PyTorch brings for CUDA, and at its first launch a C compiler.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from kronos_model.engine.decoding import noise
from kronos_model.engine.decoding.sampling import RowParams

_GAMMA = tl.constexpr(noise.GAMMA)
_FIRST_MULTIPLIER, _SECOND_MULTIPLIER = map(tl.constexpr, noise.MULTIPLIERS)
_NOT_UNIFORM_BITS = tl.constexpr(64 - noise.UNIFORM_BITS)
_UNIFORM_MASK = tl.constexpr((1 << noise.UNIFORM_BITS) - 1)
_UNIFORM_STEP = tl.constexpr(2.0**-noise.UNIFORM_BITS)
BLOCK_BARS = 64
NUM_WARPS = 4


def draw(logits: Tensor, params: RowParams, seed: Tensor, path: Tensor, step: Tensor, number: int) -> Tensor:
    """One token a row, (R,) int64: ``sample(logits, params, counter_noise(seed, path, step, number, V))``."""
    num_rows, vocabulary = logits.shape
    tokens = seed.new_empty(num_rows)
    columns = (params.temperature, params.top_k, params.top_p, seed, path, step)
    draw_row[(num_rows,)](
        logits.contiguous(), *columns, tokens, number, vocabulary=vocabulary, num_warps=NUM_WARPS
    )
    return tokens


@triton.jit
def _shift(z, bits: tl.constexpr):
    return (z >> bits) & ((1 << (64 - bits)) - 1)


@triton.jit
def _mix(z):
    z = (z ^ _shift(z, 30)) * _FIRST_MULTIPLIER
    z = (z ^ _shift(z, 27)) * _SECOND_MULTIPLIER
    return z ^ _shift(z, 31)


@triton.jit
def _noise(seed, path, count, columns):
    key = _mix(seed + _GAMMA)
    key = _mix(key + (path + 1) * _GAMMA)
    key = _mix(key + (count + 1) * _GAMMA)
    bits = _mix(key + (columns + 1).to(tl.int64) * _GAMMA)
    uniform = (((bits >> _NOT_UNIFORM_BITS) & _UNIFORM_MASK) + 1).to(tl.float32) * _UNIFORM_STEP
    return -tl.log(uniform) + _UNIFORM_STEP / 2


@triton.jit
def _at(values, columns, column):
    return tl.sum(tl.where(columns == column, values, 0.0))


@triton.jit
def _least_kept(p, columns, top_k, top_p, vocabulary: tl.constexpr):
    """The lowest probability that top_k and top_p keep: see ``sampling.filter_probabilities``."""
    ordered = tl.sort(p, descending=True)
    kth = tl.minimum(tl.where(top_k > 0, top_k, vocabulary), vocabulary) - 1
    kth_best = _at(ordered, columns, kth)
    ordered = tl.where(ordered >= kth_best, ordered, 0.0)
    cumulative = tl.cumsum(ordered)
    share = cumulative / _at(cumulative, columns, vocabulary - 1)
    last_kept = tl.minimum(tl.sum((share <= top_p).to(tl.int32)), vocabulary - 1)
    return tl.where(top_p < 1.0, tl.maximum(_at(ordered, columns, last_kept), kth_best), kth_best)


@triton.jit
def draw_row(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    seed_ptr,
    path_ptr,
    step_ptr,
    token_ptr,
    number,
    vocabulary: tl.constexpr,
):
    """One row's token. Pointers are to (R, V) logits and to a number for each row."""
    row = tl.program_id(0)
    columns = tl.arange(0, vocabulary)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    logits = tl.load(logits_ptr + row.to(tl.int64) * vocabulary + columns).to(tl.float32)
    logits = logits / tl.load(temperature_ptr + row)
    p = tl.exp(logits - tl.max(logits))
    p = p / tl.sum(p)
    if (top_k > 0) | (top_p < 1.0):
        p = tl.where(p >= _least_kept(p, columns, top_k, top_p, vocabulary), p, 0.0)
    count = 2 * tl.load(step_ptr + row) + number
    exponential = _noise(tl.load(seed_ptr + row), tl.load(path_ptr + row), count, columns)
    tl.store(token_ptr + row, tl.argmax(p / exponential, 0).to(tl.int64))


def read(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, prompt_slot: Tensor, first: Tensor, last: Tensor
) -> Tensor:
    """As ``static_steps.read_by_row``."""
    num_rows, num_heads, head_dim = q.shape
    out = q.new_empty(q.shape)
    read_row[(num_rows, num_heads)](
        q,
        k,
        v,
        out,
        seen,
        prompt_slot,
        first,
        last,
        1 / math.sqrt(head_dim),
        q.stride(0),
        k.stride(0),
        k.stride(1),
        head_dim=head_dim,
        width=triton.next_power_of_2(head_dim),
        block=BLOCK_BARS,
        num_warps=NUM_WARPS,
    )
    return out


@triton.jit
def _read_bars(q, k_ptr, v_ptr, first, last, most, total, mixed, head_dim, columns, block: tl.constexpr):
    """Attention to further bars: the greatest score so far, the sum of weights, and the weighted values."""
    is_column = (columns < head_dim)[None, :]
    for begin in range(first, last, block):
        bars = begin + tl.arange(0, block)
        is_bar = bars < last
        places = bars[:, None] * head_dim + columns[None, :]
        is_there = is_bar[:, None] & is_column
        keys = tl.load(k_ptr + places, mask=is_there, other=0.0).to(tl.float32)
        values = tl.load(v_ptr + places, mask=is_there, other=0.0).to(tl.float32)
        scores = tl.where(is_bar, tl.sum(q[None, :] * keys, 1), float("-inf"))
        greatest = tl.maximum(most, tl.max(scores))
        weights = tl.exp(scores - greatest)
        kept = tl.exp(most - greatest)
        total = total * kept + tl.sum(weights)
        mixed = mixed * kept + tl.sum(weights[:, None] * values, 0)
        most = greatest
    return most, total, mixed


@triton.jit
def read_row(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    seen_ptr,
    prompt_slot_ptr,
    first_ptr,
    last_ptr,
    scale,
    row_stride,
    slot_stride,
    head_stride,
    head_dim: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    """One head of one row; the numbers of a head follow each other, and those of a bar those of the next."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, width)
    place = row * row_stride + head * head_dim + columns
    q = tl.load(q_ptr + place, mask=columns < head_dim, other=0.0).to(tl.float32) * scale
    prompt = tl.load(prompt_slot_ptr + row) * slot_stride + head * head_stride
    own = row * slot_stride + head * head_stride
    first, last, seen = tl.load(first_ptr + row), tl.load(last_ptr + row), tl.load(seen_ptr + row)
    most, total = tl.full([], float("-inf"), tl.float32), tl.full([], 0.0, tl.float32)
    mixed = tl.zeros([width], tl.float32)
    most, total, mixed = _read_bars(
        q, k_ptr + prompt, v_ptr + prompt, first, last, most, total, mixed, head_dim, columns, block
    )
    most, total, mixed = _read_bars(
        q, k_ptr + own, v_ptr + own, 0, seen, most, total, mixed, head_dim, columns, block
    )
    out = (mixed / total).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (row * tl.num_programs(1) + head) * head_dim + columns, out, mask=columns < head_dim)
