"""The engine on a real GPU: the CPU's numbers, in any batch, and its speed."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.decode import engine_run
from benchmarks.support.workload import random_pair, series_request
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.engine.memory import GPU_SLOTS
from tests.kronos_model.engine.conftest import MAX_CONTEXT, assert_same_bars

pytestmark = pytest.mark.gpu

SERIES = [
    pytest.param(20, 6, "exact", id="within the context"),
    pytest.param(28, 12, "exact", id="sliding"),
    pytest.param(90, 5, "exact", id="beyond the context"),
    pytest.param(28, 12, "rolling", id="rolling"),
]
each_window = pytest.mark.parametrize(("lookback", "horizon", "policy"), SERIES)
GREEDY = {"top_k": 1, "top_p": 1.0}

NewEngine = Callable[..., Engine]


@pytest.fixture
def new_engine(pair) -> NewEngine:
    """Builds an engine on a device. Eight slots, so that more paths run in rounds."""

    def build(device: str, **given: object) -> Engine:
        model, tokenizer = (deepcopy(module).to(device) for module in pair)
        return build_engine(model, tokenizer, max_context=MAX_CONTEXT, max_slots=8, **given)

    return build


def request(
    seed: int, lookback: int, horizon: int, policy: str, paths: int = 3, **sampling: object
) -> SeriesRequest:
    params = SamplingParams(sample_count=paths, seed=seed, **sampling)
    return replace(series_request(seed, lookback, horizon, params), context_policy=policy)


def run(engine: Engine, requests: list[SeriesRequest]) -> list[np.ndarray]:
    """What earlier runs have used often is recorded first."""
    return [generation.paths for generation in engine.run(requests)]


@each_window
def test_a_greedy_forecast_is_that_of_the_cpu(first_gpu, new_engine, lookback, horizon, policy):
    requests = [request(seed, lookback, horizon, policy, **GREEDY) for seed in range(3)]
    for ours, theirs in zip(
        run(new_engine(first_gpu), requests), run(new_engine("cpu"), requests), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)


def test_a_greedy_forecast_on_the_second_gpu_is_that_of_the_cpu(second_gpu, new_engine):
    requests = [request(seed, 28, 12, "exact", **GREEDY) for seed in range(3)]
    for ours, theirs in zip(
        run(new_engine(second_gpu), requests), run(new_engine("cpu"), requests), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)


@each_window
def test_draws_are_the_same_in_any_batch(first_gpu, new_engine, lookback, horizon, policy):
    """Forty steps of each shape: enough that the usual ones are recorded and replayed."""
    requests = [request(seed, lookback, horizon, policy) for seed in range(5)]
    engine = new_engine(first_gpu)
    for _ in range(40 // horizon):
        together = run(engine, requests)
    for wanted, ours in zip(requests, together, strict=True):
        (alone,) = run(engine, [wanted])
        assert_same_bars(ours, alone)


@each_window
def test_bfloat16_is_close_to_float32(first_gpu, new_engine, lookback, horizon, policy):
    """Rounded weights move probabilities a little: by the same draws nearly all tokens are the same."""
    requests = [request(seed, lookback, horizon, policy, paths=8) for seed in range(8)]
    exact, rounded = (
        run(new_engine(first_gpu, dtype=dtype), requests) for dtype in (torch.float32, torch.bfloat16)
    )
    assert any(not np.array_equal(*both) for both in zip(exact, rounded, strict=True))
    for ours, theirs in zip(rounded, exact, strict=True):
        spread = theirs.std(axis=(0, 1))
        assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)).mean(axis=0) < spread).all()


@each_window
def test_suspended_paths_go_on_where_they_stopped(first_gpu, new_engine, lookback, horizon, policy):
    engine = new_engine(first_gpu)
    large = replace(request(3, lookback, horizon, policy, paths=16), priority="low", job="large")
    (undisturbed,) = run(engine, [large])
    generation = engine.submit(large)
    for seed in range(8):
        engine.step()
        engine.submit(replace(request(seed, 8, 2, "exact", paths=4), priority="high"))
    while engine.has_work:
        engine.step()
    assert_same_bars(generation.paths, undisturbed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_speed_of_kronos_small(first_gpu, record_property, dtype):
    """400 bars of lookback, 100 ahead, on the shape of Kronos-small. The figures are printed."""
    device = torch.device(first_gpu)
    model, tokenizer = (module.to(device) for module in random_pair("small"))
    engine = build_engine(model, tokenizer, max_context=512, max_slots=GPU_SLOTS, dtype=getattr(torch, dtype))
    for num_paths in (1, 64, GPU_SLOTS):
        requests = [series_request(seed, 400, 100, SamplingParams(seed=seed)) for seed in range(num_paths)]
        engine_run(engine, requests, device)  # it records the shapes
        total_s, prefill_s, step_s = engine_run(engine, requests, device)
        figures = f"{num_paths / step_s:,.0f} bars/s, step {step_s * 1000:.2f} ms"
        record_property(
            f"{num_paths} series:", f"{figures}, prefill {prefill_s:.3f} s, in all {total_s:.3f} s"
        )
    peak_gib = torch.cuda.max_memory_allocated(device) / 2**30
    record_property("peak memory:", f"{peak_gib:.2f} GiB with {engine.load.slots} slots")
    assert engine.load.running == engine.load.waiting == 0
