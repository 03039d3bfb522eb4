"""How many slots fit into the memory. What the largest steps on a GPU need is measured, not estimated."""

import gc
import logging
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Final, cast

import numpy as np
import torch

from kronos_model.bars.columns import COLUMNS, TIME_FEATURES
from kronos_model.engine.decoding.static_steps import StaticSteps
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.engine.runner import ModelRunner
from kronos_model.engine.scheduling.path_table import padded_bars
from kronos_model.engine.scheduling.slots import PLACES_PER_PATH
from kronos_model.engine.transformer.kv_cache import cache_dtype, cached_head_dim
from kronos_model.errors import OutOfMemory, is_out_of_memory
from kronos_model.layers import TransformerBlock
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

log = logging.getLogger(__name__)

CPU_SLOTS = 128
GPU_SLOTS = 512
"""More paths at once than a GPU needs to be busy."""
TRIAL_HORIZON: Final = 16
"""Short, so that a trial takes few steps, and that many paths are turned back into bars together."""
POOLS: Final = 2
"""Recorded steps keep their temporary tensors apart from those of all other work."""


def default_slots(device: torch.device) -> int:
    """Sample paths that run together if memory sets no bound. Those of MPS share the host's memory."""
    return GPU_SLOTS if device.type == "cuda" else CPU_SLOTS


def num_slots_on(
    device: torch.device,
    model: Kronos,
    tokenizer: KronosTokenizer,
    *,
    max_context: int,
    max_slots: int | None = None,
    memory_bytes: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> int:
    """The slots that ``build_engine`` would make. Model and tokenizer need not be on the device yet.

    The arguments are those of ``build_engine``.

    Raises:
        OutOfMemory: not even one slot fits.
    """
    num_slots = max_slots or default_slots(device)
    if memory_bytes is None:
        return num_slots
    weights, per_slot = memory_of_weights(model, tokenizer), slot_bytes(model, max_context, dtype, device)
    num_slots = min(num_slots, max(0, (memory_bytes - weights) // (PLACES_PER_PATH * per_slot)))
    if num_slots < 1:
        least = weights + PLACES_PER_PATH * per_slot
        raise OutOfMemory(f"weights and one path need {least} bytes; there are {memory_bytes}")
    return num_slots


def memory_of_weights(model: Kronos, tokenizer: KronosTokenizer) -> int:
    """Bytes of all parameters and buffers, twice: as loaded, and as the engine folds them."""
    return 2 * sum(
        tensor.numel() * tensor.element_size()
        for module in (model, tokenizer)
        for tensor in (*module.parameters(), *module.buffers())
    )


def slot_bytes(
    model: Kronos, max_context: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None
) -> int:
    """Bytes of one slot: keys and values of ``max_context`` bars in every layer.

    ``device`` is the model's if left out.
    """
    device = device or model.head.proj_s1.weight.device
    blocks = (cast(TransformerBlock, block).self_attn for block in model.transformer)
    width = sum(
        attention.n_heads * cached_head_dim(device, attention.head_dim)
        for attention in (*blocks, model.dep_layer.cross_attn)
    )
    num_bars = padded_bars(max_context + StaticSteps.NUM_SPARE_BARS)
    return 2 * num_bars * width * cache_dtype(device, dtype).itemsize


class GpuMemory:
    """What PyTorch has allocated on a GPU; ``cuda`` is ``torch.cuda``, or a fake."""

    def __init__(self, device: torch.device, cuda: ModuleType = torch.cuda) -> None:
        self._device, self._cuda = device, cuda

    def allocated_bytes(self) -> int:
        return int(self._cuda.memory_allocated(self._device))

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """The most that is allocated while this runs."""
        self._cuda.reset_peak_memory_stats(self._device)
        run()
        return int(self._cuda.max_memory_allocated(self._device))

    def return_unused(self) -> None:
        """Return to the GPU what PyTorch keeps for reuse, and what a runner that was dropped held."""
        gc.collect()  # its parts refer to each other
        with self._cuda.device(self._device):
            self._cuda.empty_cache()


def fitting_runner(
    make: Callable[..., ModelRunner],
    num_slots: int,
    *,
    chunk_bars: int,
    budget_bytes: int,
    slot_bytes: int,
    memory: GpuMemory,
) -> ModelRunner:
    """A runner with ``num_slots`` slots, or with fewer if its largest steps exceed the budget.

    Steps of other engines that run meanwhile count too, so that there may be fewer slots than possible.

    Args:
        make: Makes a runner; its argument is ``num_slots``.
        budget_bytes: For all that the runner allocates.
        slot_bytes: What a slot for a path and one for its prompt take.

    Raises:
        OutOfMemory: The budget is too small for one slot.
    """
    memory.return_unused()
    while num_slots > 0:
        try:
            runner, needed_bytes = _measured(partial(make, num_slots=num_slots), chunk_bars, memory)
        except Exception as error:  # whatever class the allocator raises
            if not (isinstance(error, OutOfMemory) or is_out_of_memory(error)):
                raise
            num_excess = -(-num_slots // 2)
        else:
            if needed_bytes <= budget_bytes:
                return runner
            del runner  # before the next one is made
            num_excess = -(-(needed_bytes - budget_bytes) // slot_bytes)
        log.info("%d slots leave too little memory for the largest steps", num_slots)
        num_slots -= num_excess
        memory.return_unused()
    raise OutOfMemory(f"weights, one path and the largest steps need more than {budget_bytes} bytes")


def _measured(make: Callable[[], ModelRunner], chunk_bars: int, memory: GpuMemory) -> tuple[ModelRunner, int]:
    """A runner, and the bytes that it needs with its temporary tensors and its recorded steps."""
    before = memory.allocated_bytes()
    runner = make()
    held = memory.allocated_bytes()
    peak = memory.peak_bytes(partial(run_largest_steps, runner, chunk_bars))
    return runner, held - before + POOLS * (peak - held)


def run_largest_steps(runner: ModelRunner, chunk_bars: int) -> None:
    """Compute the longest lookback of one chunk, the largest steps, full chunks of paths and of windows."""
    runner.warm_up()
    horizon = min(TRIAL_HORIZON, runner.max_context)
    num_paths = max(1, min(runner.num_slots, chunk_bars // horizon))
    engine = Engine(runner, max_chunk_bars=chunk_bars)
    longest = _request(chunk_bars, horizon, num_paths)
    windows = [_request(runner.max_context, 1, 1)] * min(runner.num_slots, chunk_bars // runner.max_context)
    for requests in ([longest], windows):
        generations = [engine.submit(request) for request in requests]
        while engine.has_work:
            engine.step()
        for generation in generations:
            if generation.error is not None:
                raise generation.error


def _request(lookback: int, horizon: int, num_paths: int) -> SeriesRequest:
    bars = np.ones((lookback, len(COLUMNS)), dtype=np.float32)
    stamps = np.zeros((lookback + horizon, len(TIME_FEATURES)), dtype=np.int64)
    return SeriesRequest(bars, stamps[:lookback], stamps[lookback:], SamplingParams(sample_count=num_paths))
