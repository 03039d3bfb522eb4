"""A decode step's attention as one kernel on a GPU: each row reads its shared prompt and its own bars only.

Needs Triton, as ``draw_kernel`` does. Computes in float32; a row's result does not depend on other rows.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

BLOCK_BARS = 64
NUM_WARPS = 4


def read(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, prompt_slot: Tensor, first: Tensor, last: Tensor
) -> Tensor:
    """As ``kernels.read_by_row``."""
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
