"""Builds an engine for a loaded model and tokenizer, with as many slots as are wanted and fit."""

from functools import partial
from typing import cast

import torch

from kronos_model.devices.failures import is_out_of_memory
from kronos_model.engine.engine import Engine
from kronos_model.engine.gpu.static_steps import StaticSteps
from kronos_model.engine.memory import GpuMemory, fitting_runner
from kronos_model.engine.reports import HostMark
from kronos_model.engine.runner import ModelRunner
from kronos_model.engine.scheduling.path_table import padded_bars
from kronos_model.engine.scheduling.slots import PLACES_PER_PATH
from kronos_model.engine.transformer.kv_cache import cache_dtype, cached_head_dim
from kronos_model.errors import OutOfMemory
from kronos_model.layers import TransformerBlock
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

CPU_SLOTS = 64
SLOTS_PER_SPARE = 8
"""Slots for one more that only small jobs use."""
GPU_SLOTS = 512
"""More paths at once than a GPU needs to be busy."""
CPU_CHUNK_BARS = 512
MPS_CHUNK_BARS = 2048
GPU_CHUNK_BARS = 8192
"""The longest wait of running series between two bars: about 0.1 s for Kronos-small on two cores."""


def build_engine(
    model: Kronos,
    tokenizer: KronosTokenizer,
    *,
    max_context: int,
    clip: float = 5.0,
    max_slots: int | None = None,
    max_prefill_bars: int | None = None,
    memory_bytes: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Engine:
    """An engine for a model and its tokenizer, both already on the device that computes.

    Args:
        max_context: bars the model sees at most.
        clip: scaled values are clipped to ±clip.
        max_slots: sample paths that run together; fewer if ``memory_bytes`` holds fewer. None: 64 on the
            CPU and on MPS, on a GPU as many as the memory holds, up to 512.
        max_prefill_bars: bars that a step computes in addition to the newest ones, mostly of lookbacks.
            None: 512 on the CPU, 2048 on MPS, 8192 on a GPU.
        memory_bytes: for weights and slots together, on a GPU also for the temporary tensors of steps. None
            for no limit.
        dtype: in which weights are multiplied, float32 or bfloat16.

    Raises:
        OutOfMemory: not even one slot fits, or the device has less memory than ``memory_bytes``.
    """
    device = model.head.proj_s1.weight.device
    chunk_bars = max_prefill_bars or default_chunk_bars(device)
    num_slots = num_slots_on(
        device,
        model,
        tokenizer,
        max_context=max_context,
        max_slots=max_slots,
        memory_bytes=memory_bytes,
        dtype=dtype,
    )
    num_spare = num_slots // SLOTS_PER_SPARE if device.type == "cpu" and memory_bytes is None else 0
    make = partial(ModelRunner, model, tokenizer, max_context=max_context, clip=clip, dtype=dtype)
    try:
        if memory_bytes is None or device.type != "cuda":
            runner = make(num_slots=num_slots + num_spare)
        else:
            runner = fitting_runner(
                make,
                num_slots,
                chunk_bars=chunk_bars,
                budget_bytes=memory_bytes - memory_of_weights(model, tokenizer) // 2,  # those as loaded
                slot_bytes=2 * slot_bytes(model, max_context, dtype, device),
                memory=GpuMemory(device),
            )
    except Exception as error:  # whatever class the allocator raises
        if is_out_of_memory(error):
            raise OutOfMemory(f"the device has too little memory for {num_slots} slots: {error}") from error
        raise
    return Engine(
        runner,
        max_chunk_bars=chunk_bars,
        num_spare_slots=num_spare,
        new_mark=partial(_recorded_event, device) if device.type == "cuda" else HostMark,
    )


def _recorded_event(device: torch.device) -> torch.cuda.Event:
    # A wait for the event sleeps; by default it would keep a core busy.
    event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def default_slots(device: torch.device) -> int:
    """Sample paths that run together if memory sets no bound. Those of MPS share the host's memory."""
    return GPU_SLOTS if device.type == "cuda" else CPU_SLOTS


def default_chunk_bars(device: torch.device) -> int:
    """Bars that a step computes in addition to the newest ones."""
    return {"cuda": GPU_CHUNK_BARS, "mps": MPS_CHUNK_BARS}.get(device.type, CPU_CHUNK_BARS)


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
    model: Kronos,
    max_context: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> int:
    """Bytes of one slot: keys and values of ``max_context`` bars in every layer.

    ``device`` is the model's if left out.
    """
    device = device or model.head.proj_s1.weight.device
    blocks = (cast(TransformerBlock, block).self_attn for block in model.transformer)
    width = sum(
        one.n_heads * cached_head_dim(device, one.head_dim) for one in (*blocks, model.dep_layer.cross_attn)
    )
    num_bars = padded_bars(max_context + StaticSteps.NUM_SPARE_BARS)
    return 2 * num_bars * width * cache_dtype(device, dtype).itemsize
