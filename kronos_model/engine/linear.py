"""Linear layers as the engine runs them: layers with the same input fused, weights reordered once.

A decode step reads every weight for a few rows, so it costs what reading the weights costs. On the CPU,
oneDNN reads weights in a blocked order faster than ``F.linear`` reads rows. PyTorch's own compiler does this
when it freezes weights, by the two operators that are used here. They are not public: if they are missing or
refuse, ``F.linear`` computes the same (PyTorch 2.13: ``aten/src/ATen/native/mkldnn``).

oneDNN (3.12) compiles a kernel of some 500 kB for each number of rows, and keeps it for the life of the
process, whatever the size of its primitive cache. A worker meets every number of rows in time, which would
come to gigabytes. So rows are padded to one of a few numbers.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS_HINT = 16
"""Batch size that the blocked order is chosen for; not slower than ``F.linear`` from 1 to 2000 rows."""

MAX_ROWS = 512
"""More rows are multiplied in parts of this size."""
MAX_ROWS_OF_AMX = 32
"""The same for bfloat16 on CPUs with AMX: for more rows, the order of a sum depends on their number."""
MIN_PRODUCTS_OF_AMX = 64
"""oneDNN does not use AMX for fewer rows times inputs."""
MAX_INPUTS_OF_ONE_ROW = 1024
"""Of more inputs than this, a single row is added up in another order than several."""
NUM_EXACT_ROWS = 16
"""Up to this number no row is added; above it, at most one for every eight."""


class Affine(NamedTuple):
    """Weight (out, in) and bias (out,) of a linear layer, to be changed before it is fused."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, linear: nn.Linear) -> "Affine":
        return cls(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())

    def after_scale(self, scale: Tensor) -> "Affine":
        """The same layer for inputs that were not multiplied by ``scale`` (in,)."""
        return Affine(self.weight * scale.detach(), self.bias)

    def with_rows(self, order: Tensor) -> "Affine":
        """The same layer with its outputs in another order (out,)."""
        return Affine(self.weight[order], None if self.bias is None else self.bias[order])


class FusedLinear:
    """One product for several layers of the same input: float32 (N, in) → float32 (N, sum of outs).

    Multiplies in ``dtype``. Holds its own copy of the weights as they were at construction.
    """

    def __init__(self, *layers: Affine, dtype: torch.dtype = torch.float32) -> None:
        if len({layer.bias is None for layer in layers}) != 1:
            raise ValueError("layers with and without a bias cannot be fused")
        weight = torch.cat([layer.weight for layer in layers]).to(dtype)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self._dtype = dtype
        self._bias = torch.cat(biases).to(dtype) if biases else None
        self._reordered = _reorder(weight)
        self._min_rows, self._max_rows = row_bounds(weight.shape[1], dtype)
        self._weight = weight if self._reordered is None else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._dtype is torch.float32:
            return self._product(x)
        return self._product(x.to(self._dtype)).float()

    def _product(self, x: Tensor) -> Tensor:
        if self._reordered is None:
            assert self._weight is not None
            return F.linear(x, self._weight, self._bias)
        if x.shape[0] <= self._max_rows:
            return self._product_of_few(x, self._reordered)
        product = x.new_empty(x.shape[0], self._reordered.shape[0])
        for first in range(0, x.shape[0], self._max_rows):
            rows = slice(first, first + self._max_rows)
            product[rows] = self._product_of_few(x[rows], self._reordered)
        return product

    def _product_of_few(self, x: Tensor, reordered: Tensor) -> Tensor:
        """The product of at most ``_max_rows`` rows."""
        num_rows = x.shape[0]
        num_added = num_rows_for(max(num_rows, self._min_rows)) - num_rows
        padded = F.pad(x, (0, 0, 0, num_added)) if num_added else x
        product: Tensor = torch.ops.mkldnn._linear_pointwise(padded, reordered, self._bias, "none", [], "")
        return product[:num_rows]


def num_rows_for(num_rows: int) -> int:
    """The number of rows, at least ``num_rows``, that oneDNN computes: one of 56, up to ``MAX_ROWS``."""
    if num_rows <= NUM_EXACT_ROWS:
        return num_rows
    step = 1 << ((num_rows - 1).bit_length() - 4)
    return -(-num_rows // step) * step


def row_bounds(num_inputs: int, dtype: torch.dtype) -> tuple[int, int]:
    """The numbers of rows, from … to, that oneDNN multiplies in one order, so that a row is equal in each.

    Found by comparing all numbers of rows bit for bit, up to AVX-512 and AMX (``test_rows.py`` does so).
    """
    has = torch.cpu.get_capabilities().get
    is_native = dtype is torch.float32 or bool(has("avx512_bf16"))
    min_rows = 1 if is_native and num_inputs <= MAX_INPUTS_OF_ONE_ROW else 2
    if dtype is torch.bfloat16 and has("amx_bf16"):
        return max(min_rows, -(-MIN_PRODUCTS_OF_AMX // num_inputs)), MAX_ROWS_OF_AMX
    return min_rows, MAX_ROWS


def _reorder(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's blocked order; None if oneDNN cannot be used."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        with torch.inference_mode():
            reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
            probe = weight.new_zeros(1, weight.shape[1])
            torch.ops.mkldnn._linear_pointwise(probe, reordered, None, "none", [], "")
    except (AttributeError, RuntimeError):  # this build lacks the operators, or they take other arguments
        return None
    return reordered
