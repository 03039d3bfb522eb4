"""What a step costs the host, in operations of Python: so the figures are the same on every machine."""

import gc
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, repeat
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch

from kronos_model.engine.decoding.static_steps import StaticSteps
from kronos_model.engine.decoding.steps import SlotTokens
from kronos_model.engine.engine import Engine
from kronos_model.engine.reports import EngineLoad
from kronos_model.engine.scheduling.path_table import Batch
from kronos_model.engine.scheduling.slots import MAX_SUSPENDED_AT_ONCE
from tests.kronos_model.engine.test_engine import ScriptedRunner, request

MAX_CONTEXT = 512


class HostRunner(ScriptedRunner):
    """Does what the host does for a step on a GPU, and nothing that the GPU does."""

    max_context = MAX_CONTEXT

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        cpu = torch.device("cpu")
        self._steps = StaticSteps(SimpleNamespace(device=cpu), SlotTokens(num_slots, MAX_CONTEXT, cpu))
        self._steps._graphs._step = lambda shape: None

    def compute(self, chunks: object) -> None:
        """Nothing."""

    def decode(self, batch: Batch) -> None:
        self._steps.decode(batch)


@dataclass
class Cost:
    """Operations of Python's bytecode, and calls of functions that are written in Python."""

    operations: int = 0
    calls: int = 0


def cost_of(work: Callable[[], object]) -> Cost:
    cost = Cost()

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        cost.calls += event == "call"
        cost.operations += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()  # what it finds would be called too
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return cost


def full_engine(num_slots: int, *, paths: int = 1, horizons: Iterable[int] = ()) -> Engine:
    """All slots decode. The first series have these horizons, the others a long one."""
    engine = Engine(HostRunner(num_slots), max_chunk_bars=1 << 20)
    for seed, horizon in zip(range(num_slots // paths), chain(horizons, repeat(300)), strict=False):
        engine.submit(request(seed, horizon=horizon, paths=paths))
    for _ in range(3):
        engine.step()
    assert engine.load == EngineLoad(running=num_slots, waiting=0, slots=num_slots)
    return engine


@pytest.mark.parametrize("paths", [1, 8])
def test_a_step_of_the_same_sequences_makes_as_many_calls_for_any_number_of_them(paths):
    few, many = (cost_of(full_engine(num_slots, paths=paths).step) for num_slots in (64, 512))
    assert few.calls == many.calls <= 100
    assert many.operations - few.operations <= 30 * (512 - 64) // paths
    assert few.operations <= 3500


def test_a_step_in_which_series_end_and_others_start_makes_as_many_calls_for_any_number_of_others():
    costs = []
    for num_slots in (64, 512):
        engine = full_engine(num_slots, horizons=[4 + seed // 4 for seed in range(16)])
        engine.step()
        for _ in range(3):  # four series end with each of these steps, and four others start
            for seed in range(4):
                engine.submit(request(seed, horizon=300))
            cost = cost_of(engine.step)
        assert (engine.load.running, engine.load.waiting) == (num_slots - 4, 0)
        costs.append(cost)
    few, many = costs
    assert few.calls == many.calls <= 1200
    assert few.operations <= 25_000
    assert many.operations - few.operations <= 45 * (512 - 64)


def test_a_step_with_more_jobs_than_slots_costs_little_more():
    engine = full_engine(512)
    for seed in range(400):
        engine.submit(request(seed, horizon=300))
    for _ in range(24):
        engine.step()
    costs = [cost_of(engine.step) for _ in range(10)]
    # Holders are a quantum ahead after 16 bars. Then as many as may make room in each step.
    assert len(engine._runner.suspended) >= 5 * MAX_SUSPENDED_AT_ONCE
    assert max(cost.calls for cost in costs) <= 2000
    assert max(cost.operations for cost in costs) <= 60_000
