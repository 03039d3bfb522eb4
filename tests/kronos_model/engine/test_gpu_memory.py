"""Slots leave room for the largest steps, on a GPU whose allocator is a fake."""

import weakref
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from kronos_model.engine import memory
from kronos_model.engine.decoding.static_steps import StaticSteps
from kronos_model.engine.memory import GpuMemory, fitting_runner, run_largest_steps
from kronos_model.engine.runner import ModelRunner
from kronos_model.errors import OutOfMemory
from tests.kronos_model.engine.conftest import MAX_CONTEXT

SLOT_BYTES, FIXED_BYTES, BYTES_PER_ROW = 100, 300, 10
OTHERS_BYTES = 1000


class FakeRunner:
    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.parts = [self]  # which refer to each other


class FakeGpu:
    """An engine with n slots takes 300 + 100 n of it, and its steps 10 n more. Others hold 1000."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.made: list[int] = []
        self.cuda = SimpleNamespace(
            memory_allocated=lambda device: self.allocated,
            max_memory_allocated=lambda device: self.peak,
            reset_peak_memory_stats=lambda device: setattr(self, "peak", self.allocated),
            empty_cache=lambda: None,
            device=lambda device: nullcontext(),
        )
        self.allocated = self.peak = OTHERS_BYTES

    def make(self, *, num_slots: int) -> FakeRunner:
        self.made.append(num_slots)
        assert self.allocated == OTHERS_BYTES, "the one before is still there"
        self._check(OTHERS_BYTES + FIXED_BYTES + num_slots * SLOT_BYTES)
        self.allocated += FIXED_BYTES + num_slots * SLOT_BYTES
        runner = FakeRunner(num_slots)
        weakref.finalize(runner, setattr, self, "allocated", OTHERS_BYTES)
        return runner

    def run_largest_steps(self, runner: FakeRunner, chunk_bars: int) -> None:
        self.peak = self.allocated + runner.num_slots * BYTES_PER_ROW
        self._check(self.peak)

    def _check(self, needed: int) -> None:
        if needed > self.total_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory")


def num_slots_in(gpu: FakeGpu, budget_bytes: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(memory, "run_largest_steps", gpu.run_largest_steps)
    runner = fitting_runner(
        gpu.make,
        50,
        chunk_bars=64,
        budget_bytes=budget_bytes,
        slot_bytes=SLOT_BYTES,
        memory=GpuMemory(torch.device("cuda", 0), gpu.cuda),
    )
    return runner.num_slots


def needed_bytes(num_slots: int) -> int:
    """The temporary tensors twice: recorded steps have their own."""
    return FIXED_BYTES + num_slots * (SLOT_BYTES + 2 * BYTES_PER_ROW)


def test_the_budget_holds_slots_and_the_peak_of_the_largest_steps(monkeypatch):
    gpu = FakeGpu(total_bytes=10**6)
    assert num_slots_in(gpu, needed_bytes(50), monkeypatch) == 50
    assert gpu.made == [50]
    found = num_slots_in(gpu, needed_bytes(50) - 1, monkeypatch)
    assert found == 49
    found = num_slots_in(gpu, needed_bytes(20), monkeypatch)
    assert 10 <= found <= 20
    assert needed_bytes(found) <= needed_bytes(20)


def test_if_the_gpu_has_less_than_the_budget_half_the_slots_are_tried(monkeypatch):
    gpu = FakeGpu(total_bytes=OTHERS_BYTES + needed_bytes(13))
    assert num_slots_in(gpu, 10**6, monkeypatch) == 12
    assert gpu.made == [50, 25, 12]


@pytest.mark.parametrize(("total_bytes", "budget_bytes"), [(10**6, needed_bytes(1) - 1), (1100, 10**6)])
def test_without_room_for_one_slot_there_is_no_engine(total_bytes, budget_bytes, monkeypatch):
    with pytest.raises(OutOfMemory, match=str(budget_bytes)):
        num_slots_in(FakeGpu(total_bytes), budget_bytes, monkeypatch)


def test_other_errors_of_a_trial_are_not_taken_for_missing_memory(monkeypatch):
    gpu = FakeGpu(10**6)
    gpu.make = lambda num_slots: {}[num_slots]
    with pytest.raises(KeyError):
        num_slots_in(gpu, 10**6, monkeypatch)


@pytest.mark.parametrize("num_slots", [1, 6])
def test_a_trial_meets_the_largest_step_chunk_and_end(pair, num_slots, monkeypatch):
    runner = ModelRunner(*pair, max_context=MAX_CONTEXT, num_slots=num_slots, steps=StaticSteps, packs=True)
    sizes: dict[str, int] = {}

    def noting(name: str, size_of, part: object, method: str) -> None:
        run = getattr(part, method)

        def noted(*args: object) -> object:
            sizes[name] = max(sizes.get(name, 0), size_of(*args))
            return run(*args)

        monkeypatch.setattr(part, method, noted)

    noting("lookback", lambda bars, *_: len(bars), runner._coder, "encode")
    noting("rows", lambda tokens, *_: len(tokens), runner._network, "next_tokens")
    noting(
        "paths", lambda series: sum(len(own) for _, paths in series for own in paths), runner._coder, "decode"
    )
    noting("windows", lambda tokens, *_: len(tokens), runner._network, "fill")
    run_largest_steps(runner, 96)
    num_windows = min(num_slots, 96 // MAX_CONTEXT)
    assert sizes == {
        "lookback": 96,
        "rows": num_slots,
        "paths": 96 if num_slots == 6 else 16,
        "windows": num_windows * (MAX_CONTEXT - 1),
    }


def test_a_failing_trial_raises_its_error(pair, monkeypatch):
    runner = ModelRunner(*pair, max_context=MAX_CONTEXT, num_slots=2)
    fail = partial(next, iter([]))
    monkeypatch.setattr(runner._coder, "encode", lambda *_: fail())
    with pytest.raises(Exception, match="StopIteration"):
        run_largest_steps(runner, 64)
