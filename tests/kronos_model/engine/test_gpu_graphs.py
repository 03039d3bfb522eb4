"""Recorded steps and memory on a real GPU: replays, failures and neighbours change no forecast."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_model.engine.build import build_engine
from kronos_model.engine.decoding.graphs import FACTOR_AFTER_FAILURE, USES_UNTIL_RECORDED, GraphCache
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams
from kronos_model.errors import OutOfMemory
from tests.kronos_model.engine.conftest import MAX_CONTEXT, assert_same_bars

pytestmark = pytest.mark.gpu

HORIZON = 8
REQUESTS = [
    series_request(seed, 20, HORIZON, SamplingParams(sample_count=paths, seed=seed))
    for seed, paths in enumerate([1, 3, 1, 8])
]
NUM_RUNS = -(-USES_UNTIL_RECORDED // HORIZON) + 1
"""After so many, what they use is recorded."""
MIB = 2**20


@pytest.fixture
def new_engine(pair) -> Callable[..., Engine]:
    def build(device: str = "cuda:0", **given: object) -> Engine:
        model, tokenizer = (deepcopy(module).to(device) for module in pair)
        return build_engine(model, tokenizer, max_context=MAX_CONTEXT, max_slots=8, **given)

    return build


def graphs_of(engine: Engine) -> GraphCache:
    return engine._runner._steps._graphs


def forecasts(engine: Engine, num_runs: int = 1) -> list[np.ndarray]:
    """Those of the last run. Each run first records what the ones before have used often."""
    for _ in range(num_runs):
        generations = engine.run(REQUESTS)
    return [generation.paths for generation in generations]


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for paths, other in zip(ours, theirs, strict=True):
        assert_same_bars(paths, other)


@pytest.fixture
def unrecorded(new_engine) -> list[np.ndarray]:
    engine = new_engine()
    result = forecasts(engine)
    assert not graphs_of(engine)._graphs
    return result


def test_replayed_steps_give_what_launched_ones_give(first_gpu, new_engine, unrecorded):
    engine = new_engine()
    assert_same(forecasts(engine, NUM_RUNS), unrecorded)
    assert graphs_of(engine)._graphs


def test_graphs_that_make_room_for_others_change_nothing(first_gpu, new_engine, unrecorded):
    engine = new_engine()
    graphs_of(engine)._capacity = 2
    for _ in range(3):
        for count in (1, 2, len(REQUESTS)):
            for _ in range(NUM_RUNS):
                torch.cuda.empty_cache()  # returns the workspace of cuBLAS, if a dropped graph has freed it
                generations = engine.run(REQUESTS[:count])
            assert_same([generation.paths for generation in generations], unrecorded[:count])
            assert 1 <= len(graphs_of(engine)._graphs) <= 2


def test_after_a_failed_recording_steps_go_on_and_are_recorded_later(first_gpu, new_engine, unrecorded):
    engine = new_engine()
    graphs = graphs_of(engine)
    step, failed = graphs._step, []

    def fail_once(shape: object) -> None:
        step(shape)
        if torch.cuda.is_current_stream_capturing() and not failed:
            failed.append(shape)
            torch.cuda.synchronize()  # a recording cannot do that

    graphs._step = fail_once
    assert_same(forecasts(engine, NUM_RUNS), unrecorded)
    assert failed
    assert not graphs._graphs
    assert_same(forecasts(engine, FACTOR_AFTER_FAILURE * NUM_RUNS), unrecorded)
    assert graphs._graphs


def test_engines_that_record_during_other_work_give_the_same(first_gpu, new_engine, unrecorded):
    """As when a worker loads a further model, or an app predicts on several threads."""
    engines, is_over = [new_engine() for _ in range(3)], threading.Event()

    def work() -> None:
        while not is_over.is_set():
            x = torch.ones(512, 512, device=first_gpu)  # PyTorch lets nobody draw while a graph is recorded
            (x @ x).sum().item()
            torch.cuda.empty_cache()

    with ThreadPoolExecutor(len(engines) + 1) as threads:
        other = threads.submit(work)
        results = list(threads.map(lambda engine: forecasts(engine, 3 * NUM_RUNS), engines))
        is_over.set()
        other.result()
    for result in results:
        assert_same(result, unrecorded)


def test_the_second_gpu_records_and_replays_while_the_first_is_current(second_gpu, new_engine):
    engine = new_engine(second_gpu)
    launched = forecasts(engine)
    assert torch.cuda.current_device() == 0
    assert_same(forecasts(engine, NUM_RUNS), launched)
    assert graphs_of(engine)._graphs


@pytest.fixture
def memory_bound() -> Iterator[Callable[[int], None]]:
    """Bounds what PyTorch may take of the first GPU, to what it has now and so much more."""
    total = torch.cuda.get_device_properties(0).total_memory

    def bound(more_bytes: int) -> None:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + more_bytes) / total, 0)

    yield bound
    torch.cuda.set_per_process_memory_fraction(1.0, 0)


@pytest.mark.parametrize("more_bytes", [0, 2 * MIB, 8 * MIB, 64 * MIB])
def test_series_that_fit_are_unchanged_when_memory_runs_out(
    first_gpu, new_engine, unrecorded, memory_bound, more_bytes
):
    engine = new_engine()
    engine.run(REQUESTS[:1])  # loads kernels and makes workspaces
    memory_bound(more_bytes)
    generations = engine.run(REQUESTS)
    for generation, expected in zip(generations, unrecorded, strict=True):
        if generation.error is None:
            assert_same_bars(generation.paths, expected)
        else:
            assert isinstance(generation.error, OutOfMemory)
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    assert_same(forecasts(engine, NUM_RUNS), unrecorded)


@pytest.mark.parametrize("memory_mib", [256, 512])
def test_an_engine_stays_within_its_memory(first_gpu, new_engine, memory_mib):
    """Also while it records, and in its largest steps."""
    before = torch.cuda.memory_allocated(0)
    torch.cuda.reset_peak_memory_stats(0)
    engine = new_engine(max_prefill_bars=256, memory_bytes=memory_mib * MIB)
    forecasts(engine, NUM_RUNS)
    engine.run([series_request(1, 256, HORIZON, SamplingParams(sample_count=8, seed=1))])
    assert engine.load.slots == 8
    assert torch.cuda.max_memory_allocated(0) - before <= memory_mib * MIB


def test_an_engine_that_does_not_fit_is_not_built(first_gpu, new_engine):
    with pytest.raises(OutOfMemory):
        new_engine(max_prefill_bars=256, memory_bytes=2 * MIB)
