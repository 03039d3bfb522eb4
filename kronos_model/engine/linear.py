"""Linear layers as the engine runs them: several that read the same input as one, weights reordered once.

A decode step reads every weight for a handful of rows, so it costs what reading them costs. On the CPU,
oneDNN reads weights in a blocked order faster than ``F.linear`` reads rows; what PyTorch's own compiler does
when it freezes weights is done here by the same two operators. They are not public: where they are missing
or refuse, ``F.linear`` computes the same (PyTorch 2.13: ``aten/src/ATen/native/mkldnn``).
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS_HINT = 16
"""Batch that the blocked order is chosen for; measured no slower than ``F.linear`` from 1 to 2000 rows."""


class Affine(NamedTuple):
    """Weight (out, in) and bias (out,) of a linear layer, to be changed before it is fused."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, linear: nn.Linear) -> "Affine":
        return cls(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())

    def after_scale(self, scale: Tensor) -> "Affine":
        """The same layer for inputs that are not multiplied by ``scale`` (in,) before."""
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
        self._weight = weight if self._reordered is None else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._dtype is torch.float32:
            return self._product(x)
        return self._product(x.to(self._dtype)).float()

    def _product(self, x: Tensor) -> Tensor:
        if self._reordered is None:
            assert self._weight is not None
            return F.linear(x, self._weight, self._bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._reordered, self._bias, "none", [], "")
        return product


def _reorder(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's blocked order; None where that cannot be had."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        with torch.inference_mode():
            reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
            probe = weight.new_zeros(1, weight.shape[1])
            torch.ops.mkldnn._linear_pointwise(probe, reordered, None, "none", [], "")
    except (AttributeError, RuntimeError):  # operators that this build lacks, or that want other arguments
        return None
    return reordered
