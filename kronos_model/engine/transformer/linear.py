"""Linear layers as the engine runs them: layers with the same input fused, weights reordered once.

A decode step reads every weight for a few rows, so it costs what reading the weights costs. On the CPU,
oneDNN reads weights in a blocked order faster than ``F.linear`` reads rows. PyTorch's own compiler does this
when it freezes weights, by the two operators that are used here. They are not public: if they are missing or
refuse, ``F.linear`` computes the same (PyTorch 2.13: ``aten/src/ATen/native/mkldnn``).

oneDNN (3.12) compiles a kernel of some 500 kB for each number of rows, and keeps it for the life of the
process, whatever the size of its primitive cache. A worker meets every number of rows in time, which would
come to gigabytes. So rows are padded to one of a few numbers. oneDNN adds up all of these in one order, so a
row's product does not depend on other rows.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MAX_ROWS = 512
"""More rows are multiplied in parts of this size."""
MAX_INPUTS_OF_ANY_ROWS = 1024
"""For more inputs than this, oneDNN adds up one row, and many rows with AMX, in other orders."""
MAX_ROWS_OF_MANY_INPUTS = 32
"""Rows of so many inputs that AMX multiplies at once."""
MIN_PRODUCTS_OF_AMX = 64
"""oneDNN does not use AMX for fewer rows times inputs."""
NUM_EXACT_ROWS = 16
"""Up to this number no row is added; above it, at most one for every eight."""


class Affine(NamedTuple):
    """Weight (out, in) and bias (out,) of a linear layer, to be changed before it is fused."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> "Affine":
        return cls(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())

    def after_scale(self, scale: Tensor) -> "Affine":
        """The same layer for inputs that were not multiplied by ``scale`` (in,)."""
        return Affine(self.weight * scale.detach(), self.bias)

    def times(self, factor: float) -> "Affine":
        """The same layer with its outputs multiplied."""
        return Affine(self.weight * factor, None if self.bias is None else self.bias * factor)

    def with_rows(self, order: Tensor) -> "Affine":
        """The same layer with its outputs in another order (out,)."""
        return Affine(self.weight[order], None if self.bias is None else self.bias[order])

    def with_heads(self, num_heads: int, head_dim: int) -> "Affine":
        """The same layer with zeros added to each head's outputs, up to ``head_dim``."""
        bias = None if self.bias is None else _padded_heads(self.bias, num_heads, head_dim)
        return Affine(_padded_heads(self.weight, num_heads, head_dim), bias)

    def after_heads(self, num_heads: int, head_dim: int) -> "Affine":
        """The same layer for inputs of ``with_heads``."""
        return Affine(_padded_heads(self.weight.T, num_heads, head_dim).T, self.bias)


def _padded_heads(x: Tensor, num_heads: int, head_dim: int) -> Tensor:
    """(H · hd, …) → (H · head_dim, …)."""
    heads = torch.unflatten(x, 0, (num_heads, -1))
    padded = x.new_zeros(num_heads, head_dim, *x.shape[1:])
    padded[:, : heads.shape[1]] = heads
    return padded.flatten(0, 1)


class FusedLinear:
    """One product for several layers of the same input: (N, in) → (N, sum of outs), both in ``dtype``.

    Holds its own copy of the weights as they were at construction. ``swish`` applies x · sigmoid(x) to the
    product. oneDNN does that itself, because ``F.silu`` rounds a number by its place in the batch.
    """

    def __init__(self, *layers: Affine, dtype: torch.dtype = torch.float32, swish: bool = False) -> None:
        if len({layer.bias is None for layer in layers}) != 1:
            raise ValueError("layers with and without a bias cannot be fused")
        weight = torch.cat([layer.weight for layer in layers]).to(dtype)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self._dtype = dtype
        self._bias = torch.cat(biases).to(dtype) if biases else None
        self._has_swish = swish
        self._rows = row_bounds(weight.shape[1], dtype)
        reordered = _reorder(weight, self._rows.hint)
        self._is_reordered = reordered is not None
        self._weight = weight if reordered is None else reordered

    def __call__(self, x: Tensor) -> Tensor:
        """The product. oneDNN multiplies at most ``_rows.most`` rows at once."""
        x, most = x.to(self._dtype), self._rows.most
        if not self._is_reordered:
            product = F.linear(x, self._weight, self._bias)
            return F.silu(product) if self._has_swish else product
        if x.shape[0] <= most:
            return self._part(x)
        return torch.cat([self._part(part) for part in torch.split(x, most)])

    def _part(self, x: Tensor) -> Tensor:
        num_rows = x.shape[0]
        num_added = num_rows_for(max(num_rows, self._rows.least)) - num_rows
        if num_added:
            x = F.pad(x, (0, 0, 0, num_added))
        return _multiply(x, self._weight, self._bias, "swish" if self._has_swish else "none")[:num_rows]


def _multiply(x: Tensor, reordered: Tensor, bias: Tensor | None, then: str = "none") -> Tensor:
    # Without its overload's name, PyTorch writes an error message about the first one for each call.
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, reordered, bias, then, [], "")
    return product


def num_rows_for(num_rows: int) -> int:
    """The number of rows, at least ``num_rows``, that oneDNN computes: one of 56, up to ``MAX_ROWS``."""
    if num_rows <= NUM_EXACT_ROWS:
        return num_rows
    step = 1 << ((num_rows - 1).bit_length() - 4)
    return -(-num_rows // step) * step


class RowBounds(NamedTuple):
    """The numbers of rows that oneDNN adds up in one order: from ``least`` to ``most``.

    ``hint`` is the batch size that the weights' order is chosen for.
    """

    least: int
    most: int
    hint: int


def row_bounds(num_inputs: int, dtype: torch.dtype) -> RowBounds:
    """The bounds for oneDNN on this CPU, found by comparing all numbers of rows bit for bit (oneDNN 3.12).

    The hints were not slower than ``F.linear`` from 1 to 2000 rows. Other hints need other bounds.
    """
    has = torch.cpu.get_capabilities()
    has_many_inputs = num_inputs > MAX_INPUTS_OF_ANY_ROWS
    if dtype is torch.bfloat16 and has.get("amx_bf16"):
        least = -(-MIN_PRODUCTS_OF_AMX // num_inputs)
        return RowBounds(least, MAX_ROWS_OF_MANY_INPUTS if has_many_inputs else MAX_ROWS, hint=1)
    is_native = dtype is torch.float32 or has.get("avx512_bf16")
    return RowBounds(1 if is_native and not has_many_inputs else 2, MAX_ROWS, hint=16)


def _reorder(weight: Tensor, rows_hint: int) -> Tensor | None:
    """The weight in oneDNN's blocked order; None if oneDNN cannot be used."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        with torch.inference_mode():
            reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows_hint)
            probe = weight.new_zeros(1, weight.shape[1])
            _multiply(probe, reordered, None)
    except (AttributeError, RuntimeError):  # this build lacks the operators, or they take other arguments
        return None
    return reordered
