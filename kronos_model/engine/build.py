"""Builds an engine for a loaded model and tokenizer, with as many slots as fit the memory."""

import logging
from collections.abc import Callable
from functools import partial

import torch

from kronos_model.engine.choice import EngineChoice, native_network
from kronos_model.engine.engine import Engine
from kronos_model.engine.memory import GpuMemory, fitting_runner, memory_of_weights, num_slots_on, slot_bytes
from kronos_model.engine.reports import HostMark
from kronos_model.engine.runner import ModelRunner
from kronos_model.errors import KronosError, OutOfMemory, is_out_of_memory
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

log = logging.getLogger(__name__)

SLOTS_PER_SPARE = 8
"""Slots for one more that only small jobs use."""
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
    kind: EngineChoice = "auto",
) -> Engine:
    """An engine for a model and its tokenizer, both already on the device that computes.

    Args:
        max_context: bars the model sees at most.
        clip: scaled values are clipped to ±clip.
        max_slots: sample paths that run together; fewer if ``memory_bytes`` holds fewer. None: 128 on the
            CPU and on MPS, on a GPU as many as the memory holds, up to 512.
        max_prefill_bars: bars that a step computes in addition to the newest ones, mostly of lookbacks.
            None: 512 on the CPU, 2048 on MPS, 8192 on a GPU.
        memory_bytes: for weights and slots together, on a GPU also for the temporary tensors of steps. None
            for no limit.
        dtype: in which weights are multiplied, float32 or bfloat16.
        kind: what computes the steps: ``"torch"``, else the native kernels if this CPU can use them. The
            engine's ``kind`` and ``kind_reason`` say what was chosen, and why.

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
    reason = None
    try:
        if device.type == "cpu" and kind != "torch":
            runner, reason = cpu_runner(make, num_slots + num_spare, model, dtype)
        elif memory_bytes is None or device.type != "cuda":
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
        kind="torch" if reason or device.type != "cpu" or kind == "torch" else "native",
        kind_reason=reason,
    )


def cpu_runner(
    make: Callable[..., ModelRunner], num_slots: int, model: Kronos, dtype: torch.dtype
) -> tuple[ModelRunner, str | None]:
    """A runner with native kernels; else one of PyTorch, and a sentence that says why."""
    try:
        return make(num_slots=num_slots, network=native_network(model, dtype)), None
    except KronosError as error:
        log.info("PyTorch computes the model: %s", error)  # what a compiler printed is in the log only
        reason = str(error).partition("\n")[0].rstrip(".")
    return make(num_slots=num_slots), reason


def _recorded_event(device: torch.device) -> torch.cuda.Event:
    # A wait for the event sleeps; by default it would keep a core busy.
    event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def default_chunk_bars(device: torch.device) -> int:
    """Bars that a step computes in addition to the newest ones."""
    return {"cuda": GPU_CHUNK_BARS, "mps": MPS_CHUNK_BARS}.get(device.type, CPU_CHUNK_BARS)
