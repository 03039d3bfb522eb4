"""Which engine computes a model: native kernels on a CPU that can use them, else PyTorch.

The choice depends on the CPU, the model and a test of the kernels, never on time or on what is compiled
already: equal workers choose alike.
"""

import logging
import os
import platform
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, cast

import torch

from kronos_model.engine.native.compiling import is_warm, ready_kernels
from kronos_model.engine.reports import EngineKind
from kronos_model.engine.transformer.kv_cache import cache_dtype
from kronos_model.engine.transformer.network import Network
from kronos_model.errors import CompilationFailed, KronosError
from kronos_model.layers import TransformerBlock
from kronos_model.model import Kronos

log = logging.getLogger(__name__)

EngineChoice = Literal["auto", "native", "torch"]
SIZE_STEP = 16
"""The kernels compute so many numbers at once."""


class EngineOutlook(NamedTuple):
    """Which engine would be used, and why."""

    kind: EngineKind
    why: str
    is_fallback: bool = False
    """Whether PyTorch is used because this CPU cannot use the native kernels."""
    is_compiled: bool = True
    """Whether it can be used without a compilation."""


def engine_outlook(
    device: torch.device, kind: EngineChoice = "auto", dtype: torch.dtype = torch.float32
) -> EngineOutlook:
    """The engine that ``build_engine`` would make on a device. Loads no model, and compiles nothing."""
    if device.type != "cpu":
        return EngineOutlook("torch", f"the native engine is for CPUs, not for {device}")
    if kind == "torch":
        return EngineOutlook("torch", "as asked for")
    if reason := _reason_of_machine():
        return EngineOutlook("torch", reason, is_fallback=True)
    is_compiled = is_warm(_dtypes(device, dtype))
    when = "" if is_compiled else " at the first start"
    why = f"this CPU can use the kernels, which are compiled{when}"
    return EngineOutlook("native", why, is_compiled=is_compiled)


def native_network(model: Kronos, dtype: torch.dtype) -> Callable[..., Network]:
    """What makes a network of compiled kernels, which is tested when it is made.

    Raises KronosError, also when it is made, that says why PyTorch has to compute the model.
    """
    if reason := _reason_of_machine() or _reason_of_model(model):
        raise KronosError(reason)
    ready_kernels(_dtypes(model.head.proj_s1.weight.device, dtype), log.info)
    # Later than the kernels, which Numba compiles for what is set while they are imported.
    from kronos_model.engine.native.check import difference_of
    from kronos_model.engine.native.network import NativeNetwork

    def make(model: Kronos, **sizes: Any) -> Network:
        network = NativeNetwork(model, **sizes)
        if difference := difference_of(network, model, dtype):
            raise CompilationFailed(f"the self-test of the native kernels failed: {difference}")
        return network

    return make


def _reason_of_machine() -> str | None:
    if os.name != "posix":
        return "the native kernels need a system with POSIX threads"
    if find_spec("numba") is None:
        return "Numba is not installed"
    if platform.machine() in {"x86_64", "AMD64"}:
        has = torch.cpu.get_capabilities()
        if not (has.get("avx2") and has.get("fma3")):
            return "this CPU has neither AVX-512 nor AVX2 with FMA"
    return None


def _reason_of_model(model: Kronos) -> str | None:
    block = cast(TransformerBlock, model.transformer[0])
    for name, size in (("d_model", model.d_model), ("ff_dim", block.ffn.w1.out_features)):
        if size % SIZE_STEP:
            return f"the model's {name}, {size}, is not a multiple of {SIZE_STEP}"
    return None


def _dtypes(device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    weights, cached = (str(kind).removeprefix("torch.") for kind in (dtype, cache_dtype(device, dtype)))
    return weights, cached
