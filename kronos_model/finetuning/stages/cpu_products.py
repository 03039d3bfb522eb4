"""Float32 matrix products for training on CPUs on which PyTorch's own are slow.

PyTorch multiplies float32 matrices with MKL. MKL uses only its AVX2 kernels on processors that are not
Intel's. oneDNN, also a part of PyTorch, uses AVX-512 there and is more than twice as fast. Its operator is
not public (PyTorch 2.13: ``aten/src/ATen/native/mkldnn/Linear.cpp``). If it is missing or fails, ``F.linear``
is left unchanged.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


def fast_products(device: torch.device) -> AbstractContextManager[Any]:
    """Make ``F.linear`` use oneDNN inside the block, forward and backward, if that is faster."""
    return OneDnnProducts() if device.type == "cpu" and is_onednn_faster() else nullcontext()


@functools.cache
def is_onednn_faster() -> bool:
    """Whether MKL does not use this CPU's AVX-512, and oneDNN's operator works."""
    capabilities: Mapping[str, Any] = torch.cpu.get_capabilities()
    if "intel" in str(capabilities.get("cpu_name", "intel")).lower() or not capabilities.get("avx512_f"):
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    probe = torch.zeros(2, 2)
    try:
        onednn_product(probe.t(), probe.t())
    except (AttributeError, RuntimeError):  # this build lacks the operator, or it needs other arguments
        return False
    return True


class OneDnnProducts(TorchFunctionMode):
    """Computes ``F.linear`` of float32 tensors on the CPU with oneDNN; changes nothing else, nor autocast."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.linear and not kwargs and _is_float32_on_cpu(*args[:2]):
            return _Linear.apply(*args, *[None] * (3 - len(args)))  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """x (…, in), weight (out, in) and bias (out,) or None → (…, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_product(x.flatten(0, -2), weight, bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].flatten(0, -2)  # (N, out)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            onednn_product(gradient, weight.t()).view_as(x) if needs_x else None,
            onednn_product(gradient.t(), x.flatten(0, -2).t()) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (N, in) by the transpose of weight (out, in), views of any order: (N, out)."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _is_float32_on_cpu(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dtype is weight.dtype is torch.float32
        and x.device.type == "cpu"
        and x.dim() > 1
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )
