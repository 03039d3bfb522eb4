"""How many slots leave a GPU enough memory for an engine's largest steps: measured, not estimated."""

import gc
import logging
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Final

import numpy as np
import torch

from kronos_model.bars.columns import COLUMNS, TIME_FEATURES
from kronos_model.devices.failures import is_out_of_memory
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.engine.runner import ModelRunner
from kronos_model.errors import OutOfMemory

log = logging.getLogger(__name__)

TRIAL_HORIZON: Final = 16
"""Short, so that a trial takes few steps, and that many paths are turned back into bars together."""
POOLS: Final = 2
"""Recorded steps keep their temporary tensors apart from those of all other work."""


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
        generations = [engine.submit(one) for one in requests]
        while engine.has_work:
            engine.step()
        for generation in generations:
            if generation.error is not None:
                raise generation.error


def _request(lookback: int, horizon: int, num_paths: int) -> SeriesRequest:
    bars = np.ones((lookback, len(COLUMNS)), dtype=np.float32)
    stamps = np.zeros((lookback + horizon, len(TIME_FEATURES)), dtype=np.int64)
    return SeriesRequest(bars, stamps[:lookback], stamps[lookback:], SamplingParams(sample_count=num_paths))
