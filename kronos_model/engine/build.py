"""An engine for a loaded pair, with as many slots as were asked for and as the memory allows."""

import torch

from kronos_model.engine.engine import Engine
from kronos_model.engine.runner import ModelRunner
from kronos_model.errors import OutOfMemory
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer


def build_engine(
    model: Kronos,
    tokenizer: KronosTokenizer,
    *,
    max_context: int,
    clip: float = 5.0,
    max_slots: int = 64,
    max_prefill_bars: int = 512,
    memory_bytes: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Engine:
    """An engine for a model and its tokenizer, both on the device that is to compute.

    Args:
        max_context: bars the model sees at most.
        clip: scaled values are clipped to ±clip.
        max_slots: sample paths that run together; fewer where ``memory_bytes`` holds fewer.
        max_prefill_bars: bars of lookback that one step computes.
        memory_bytes: for weights and slots together; None for no limit.
        dtype: in which weights are multiplied, float32 or bfloat16.

    Raises:
        OutOfMemory: not even one slot fits.
    """
    weights = memory_of_weights(model, tokenizer)
    if memory_bytes is not None:
        per_slot = slot_bytes(model, max_context)
        max_slots = min(max_slots, (memory_bytes - weights) // per_slot)
        if max_slots < 1:
            raise OutOfMemory(
                f"weights and one path need {weights + per_slot} bytes; there are {memory_bytes}"
            )
    runner = ModelRunner(
        model, tokenizer, max_context=max_context, num_slots=max_slots, clip=clip, dtype=dtype
    )
    return Engine(runner, max_chunk_bars=max_prefill_bars)


def memory_of_weights(model: Kronos, tokenizer: KronosTokenizer) -> int:
    """Bytes of all parameters and buffers."""
    return sum(
        tensor.numel() * tensor.element_size()
        for module in (model, tokenizer)
        for tensor in (*module.parameters(), *module.buffers())
    )


def slot_bytes(model: Kronos, max_context: int) -> int:
    """Bytes of one slot: keys and values of ``max_context`` bars in every layer."""
    layers = len(model.transformer) + 1
    return 2 * layers * max_context * model.d_model * 4
