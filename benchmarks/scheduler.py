"""What does a step cost the host of a GPU: to decide what runs, and to prepare the step's inputs?

Medians of CPU time, with a series of one path in each slot. Nothing is computed. On a GPU the host also
launches the recorded step.

    python -m benchmarks.scheduler [--slots 512] [--steps 200]
"""

import itertools
import statistics
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.support.harness import Table, options
from benchmarks.support.workload import MAX_CONTEXT, series_request
from kronos_model.engine.build import GPU_CHUNK_BARS
from kronos_model.engine.decoding.static_steps import StaticSteps
from kronos_model.engine.decoding.steps import SlotTokens
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams
from kronos_model.engine.sequence import Sequence

LOOKBACK, WARM_UP_STEPS = 30, 50
CASES = {
    "no series ends": (480, 0),
    "series of 480 bars end, others start": (480, 1),
    "series of 100 bars end, others start": (100, 1),
    "400 more jobs than slots": (480, 400),
}
"""Bars of each series, and how many wait for a slot. With one that waits, the first series end in turn."""


class HostRunner:
    """Does what the host does for a step, and nothing that the GPU does."""

    max_context = MAX_CONTEXT

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        network: Any = SimpleNamespace(device=torch.device("cpu"))
        steps = StaticSteps(network, SlotTokens(num_slots, MAX_CONTEXT, network.device))
        steps._graphs._step = lambda shape: None
        self.decode, self.release = steps.decode, steps.release

    def paths(self, sequence: Sequence) -> np.ndarray:
        return np.zeros((sequence.num_paths, sequence.request.horizon, 6), dtype=np.float32)

    def __getattr__(self, name: str) -> Any:
        return lambda work: None


def step_ms(num_slots: int, num_steps: int, horizon: int, num_waiting: int) -> float:
    engine = Engine(HostRunner(num_slots), max_chunk_bars=GPU_CHUNK_BARS)
    whole, seeds = series_request(0, LOOKBACK, horizon), itertools.count()

    def submit(num_bars: int = horizon) -> None:
        stamps, sampling = whole.future_stamps[:num_bars], SamplingParams(seed=next(seeds))
        engine.submit(replace(whole, future_stamps=stamps, sampling=sampling))

    times = []
    for number in range(num_slots):
        submit(1 + number * horizon // num_slots if num_waiting == 1 else horizon)
    for _ in range(num_waiting):
        submit()
    for _ in range(WARM_UP_STEPS + num_steps):
        start = time.thread_time()
        ended = engine.step()
        times.append(1000 * (time.thread_time() - start))
        for _ in ended:
            submit()
    return statistics.median(times[WARM_UP_STEPS:])


def main() -> None:
    given = options(__doc__, slots=512, steps=200)
    torch.set_num_threads(1)
    print(f"{given.slots} slots, medians of {given.steps} steps")
    table = Table(":<36", "ms:>6.2f", "bars/s:>10.0f")
    for name, case in CASES.items():
        median = step_ms(given.slots, given.steps, *case)
        table.row(name, median, 1000 * given.slots / median)


if __name__ == "__main__":
    main()
