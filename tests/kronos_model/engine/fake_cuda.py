"""The engine's code on a GPU that does not exist, and a count of what it asks of it.

PyTorch's FakeTensorMode computes shapes and devices, no values. Not to be had this way: times, races, whether
a call may be captured. ``logsumexp`` counts once and is about nine kernels on a GPU.
"""

import ctypes
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import torch
import torchgen
import yaml
from numpy.typing import NDArray
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.support.workload import random_pair
from kronos_model.engine.build import GPU_CHUNK_BARS
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SeriesRequest
from kronos_model.engine.runner import ModelRunner
from kronos_model.engine.scheduling.path_table import Batch
from kronos_model.engine.sequence import Chunk, Sequence

KEPT_WHOLE = {"rms_norm", "scaled_dot_product_attention"}
"""One kernel each on a GPU, though PyTorch lists them as composed of others."""
NO_KERNEL = {"_unsafe_view", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty"}
DEVICE_TYPES = ("cpu", "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip", "fpga", "maia", "xla", "vulkan",
                "metal", "xpu", "mps", "meta")  # fmt: skip
"""In the order of ``c10::DeviceType``."""
READS_PLACES = {"embedding", "gather", "index", "index_select"}
"""Read as many bytes of their first tensor as they return."""
WRITES_PLACES = {"index_copy_", "index_put_", "scatter_"}
"""Write as many bytes of their first tensor as their last one has."""
COPIES = {"_to_copy", "copy_"}
READ_BY_HOST = {"_local_scalar_dense", "masked_select", "nonzero"}


Result = TypeVar("Result")

real_from_numpy = torch.from_numpy


@dataclass
class Trace:
    """What was asked of a device."""

    kernels: Counter[str] = field(default_factory=Counter)
    num_bytes: int = 0
    """Read and written by all kernels together."""
    transfers: list[str] = field(default_factory=list)
    """Copies between host and device."""
    waits: list[str] = field(default_factory=list)
    """Calls for which the host waits: copies that block or are of memory that is not pinned, and values that
    the host reads."""
    float64: list[str] = field(default_factory=list)
    largest_bytes: int = 0
    """Of one tensor that a kernel writes."""

    @property
    def num_kernels(self) -> int:
        return self.kernels.total()


class FakeDevice(TorchDispatchMode):
    """The first device of this type; tensors on it have no values."""

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device = torch.device(device_type, 0)
        self._trace = Trace()

    @contextmanager
    def traced(self) -> Iterator[Trace]:
        """Count what runs inside."""
        before, self._trace = self._trace, Trace()
        yield self._trace
        self._trace = before

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if name not in KEPT_WHOLE:
            with self:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        if func.is_view or name in NO_KERNEL:
            return func(*args, **kwargs)
        if name == "scaled_dot_product_attention":  # PyTorch would ask the device which kernel it prefers
            out = args[0].new_empty(*args[0].shape[:-1], args[2].shape[-1])
        else:
            out = func(*args, **kwargs)
        read, written = _tensors((args, kwargs)), _tensors(out)
        if any(x.device.type != "cpu" for x in (*read, *written)):
            self._count(func, name, read, written)
            if name in COPIES and len({x.device for x in (*read, *written)}) > 1:
                self._trace.transfers.append(_described(name, read))
                is_pinned = all(x.device.type != "cpu" or hasattr(x, "is_in_pinned_memory") for x in read)
                if not (is_pinned and (kwargs.get("non_blocking") or args[2:] == (True,))):
                    self._trace.waits.append(_described(name, read))
        return out

    def _count(self, func: OpOverload, name: str, read: list[Tensor], written: list[Tensor]) -> None:
        trace = self._trace
        trace.kernels[func.name().removeprefix("aten::")] += 1
        if name in WRITES_PLACES:
            read, written = read[1:], read[-1:]
        elif name in READS_PLACES:
            read = [*read[1:], *written]
        trace.num_bytes += sum(map(_num_bytes, (*read, *written)))
        trace.largest_bytes = max([trace.largest_bytes, *map(_num_bytes, written)])
        if name in READ_BY_HOST or (
            name not in COPIES and any(x.device.type == "cpu" and x.dim() for x in read)
        ):
            trace.waits.append(_described(name, read))
        if any(x.dtype is torch.float64 and x.device.type != "cpu" for x in (*read, *written)):
            trace.float64.append(_described(name, written))


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _num_bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _pinned(x: Tensor) -> Tensor:
    pinned = x.clone()
    pinned.is_in_pinned_memory = True
    return pinned


def _described(name: str, tensors: list[Tensor]) -> str:
    return f"{name} " + ", ".join(f"{x.device.type} {tuple(x.shape)}" for x in tensors)


@contextmanager
def fake_device(device_type: str = "cuda") -> Iterator[FakeDevice]:
    """Let code run on a device that need not exist."""
    _let_torch_switch_to(device_type)
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def from_numpy(array: NDArray[Any]) -> Tensor:
        return mode.from_tensor(real_from_numpy(np.ascontiguousarray(array)))

    with (
        patch("torch.from_numpy", from_numpy),
        patch("torch.Tensor.numpy", lambda tensor: np.zeros(tensor.shape, str(tensor.dtype)[6:])),
        patch("torch.Tensor.pin_memory", _pinned),
        patch("torch.cuda.device", lambda device: nullcontext()),
        patch("torch.Tensor.exponential_", lambda tensor, generator: tensor),
        patch("torch.Tensor.random_", lambda tensor, generator: tensor),
        patch("torch.cuda.device", nullcontext),
        mode,
        FakeDevice(device_type) as fake,
    ):
        yield fake


def _let_torch_switch_to(device_type: str) -> None:
    """If PyTorch was built without this kind of device, switching to it does nothing, as for "meta"."""
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    guards = (ctypes.c_void_p * len(DEVICE_TYPES)).in_dll(
        ctypes.CDLL(str(library)), "_ZN3c104impl26device_guard_impl_registryE"
    )
    place = DEVICE_TYPES.index(device_type)
    guards[place] = guards[place] or guards[DEVICE_TYPES.index("meta")]


def runner_on(
    fake: FakeDevice,
    *,
    shape: str = "small",
    dtype: torch.dtype = torch.bfloat16,
    num_slots: int = 512,
    max_context: int = 512,
) -> ModelRunner:
    """A runner of a published shape; inside ``fake_device``."""
    with fake.device:
        pair = random_pair(shape)
    return ModelRunner(*pair, max_context=max_context, num_slots=num_slots, dtype=dtype)


@cache
def mps_kernels() -> frozenset[str]:
    """The operators that PyTorch computes on MPS, by its own list."""
    file = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    listed = yaml.CSafeLoader(file.read_text()).get_single_data()
    entries = {one["func"].partition("(")[0]: one for one in listed}

    def is_there(entry: dict[str, Any]) -> bool:
        if "structured_delegate" in entry:
            return is_there(entries[entry["structured_delegate"]])
        devices = ", ".join(entry.get("dispatch", {"CompositeImplicitAutograd": ""})).split(", ")
        return any(one == "MPS" or one.startswith("Composite") for one in devices)

    return frozenset(name for name, entry in entries.items() if is_there(entry))


class TracedRunner:
    """A runner whose work is counted, by phase. Phases of one call are joined by "+"."""

    def __init__(self, runner: ModelRunner, fake: FakeDevice) -> None:
        self._runner, self._fake = runner, fake
        self.traces: dict[str, list[Trace]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def compute(self, chunks: tuple[Chunk, ...]) -> None:
        self._count("+".join(sorted({one.phase.name for one in chunks})), self._runner.compute, chunks)

    def decode(self, batch: Batch) -> None:
        self._count("DECODE", self._runner.decode, batch)

    def leave_slots(self, sequence: Sequence) -> None:
        self._count("END", self._runner.leave_slots, sequence)

    def paths(self, sequence: Sequence) -> NDArray[np.float32]:
        return self._count("END", self._runner.paths, sequence)

    def _count(self, phases: str, run: Callable[[Any], Result], work: Any) -> Result:
        with self._fake.traced() as trace:
            result = run(work)
        self.traces[phases].append(trace)
        return result


def traces_of(runner: ModelRunner, fake: FakeDevice, requests: list[SeriesRequest]) -> dict[str, list[Trace]]:
    """What forecasting these together asks of the device."""
    counted = TracedRunner(runner, fake)
    engine = Engine(counted, max_chunk_bars=GPU_CHUNK_BARS)
    generations = [engine.submit(request) for request in requests]
    while engine.has_work:
        engine.step()
    assert all(one.error is None for one in generations)
    return counted.traces
