"""The draw of a token as one kernel on a GPU: what ``sampling`` and ``noise`` compute in some 80 operations.

Needs Triton, which PyTorch brings for CUDA, and at its first launch a C compiler.
"""

import triton
import triton.language as tl
from torch import Tensor

from kronos_model.engine.decoding import noise
from kronos_model.engine.decoding.sampling import RowParams

_GAMMA = tl.constexpr(noise.GAMMA)
_FIRST_MULTIPLIER, _SECOND_MULTIPLIER = (tl.constexpr(one) for one in noise.MULTIPLIERS)
_NOT_UNIFORM_BITS = tl.constexpr(64 - noise.UNIFORM_BITS)
_UNIFORM_MASK = tl.constexpr((1 << noise.UNIFORM_BITS) - 1)
_UNIFORM_STEP = tl.constexpr(2.0**-noise.UNIFORM_BITS)
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
