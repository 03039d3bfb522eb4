"""Cached equals recomputed; batched, in any order and in rounds, equals alone."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.support.naive import NaiveForecaster
from benchmarks.support.workload import series_request
from kronos_model.bars.columns import CLOSE
from kronos_model.engine.build import build_engine
from kronos_model.engine.decoding import static_steps
from kronos_model.engine.decoding.graphs import GraphCache
from kronos_model.engine.decoding.noise import counter_noise
from kronos_model.engine.decoding.sampling import draw
from kronos_model.engine.decoding.static_steps import Kernels, Shape, StaticSteps, read_by_row, usual_shapes
from kronos_model.engine.decoding.steps import EagerSteps
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import PRIORITIES, SamplingParams, SeriesRequest
from kronos_model.engine.runner import ModelRunner
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.transformer import network
from kronos_model.engine.transformer.network import Network
from kronos_model.model_pair import load_pair
from tests.kronos_model.engine.conftest import MAX_CONTEXT, assert_same_bars, network_of
from tests.kronos_model.engine.rolling import rolling_paths


@pytest.fixture
def new_engine(pair, kind) -> Callable[..., Engine]:
    return partial(build_engine, *pair, max_context=MAX_CONTEXT, kind=kind)


def run(engine: Engine, requests: list[SeriesRequest]) -> list[np.ndarray]:
    return [generation.paths for generation in engine.run(requests)]


@pytest.mark.parametrize(
    ("lookback", "horizon", "paths"),
    [
        (20, 6, 1),
        (20, 6, 4),
        (1, 5, 3),
        (31, 1, 2),
        (32, 8, 3),  # the window slides from the second bar on
        (28, 12, 2),  # the window begins to slide on the way
        (90, 5, 2),  # a lookback beyond the context
        (40, 32, 2),  # a horizon as long as the context: no prompt is left in the end
        (1, 32, 1),
    ],
)
def test_cached_and_recomputed_forecasts_are_identical(pair, new_engine, lookback, horizon, paths):
    request = series_request(3, lookback, horizon, SamplingParams(sample_count=paths, seed=5))
    (cached,) = run(new_engine(), [request])
    naive = NaiveForecaster(*pair, [request], MAX_CONTEXT)
    for _ in range(horizon):
        naive.step()
    assert_same_bars(cached, naive.paths()[0])


def test_paths_differ_from_each_other_and_seeds_from_each_other(new_engine):
    first, again, other = run(
        new_engine(),
        [series_request(3, 20, 8, SamplingParams(sample_count=4, seed=seed)) for seed in (1, 1, 2)],
    )
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
    assert not np.allclose(first[0], first[1])


@pytest.mark.parametrize(
    ("lookback", "horizon", "paths"),
    [(20, 6, 2), (28, 12, 1), (28, 12, 3), (40, 32, 2), (32, 9, 1), (90, 5, 2), (1, 32, 2)],
)
def test_a_rolling_cache_is_attention_to_the_newest_bars_at_ever_growing_positions(
    pair, new_engine, lookback, horizon, paths
):
    exact = series_request(3, lookback, horizon, SamplingParams(sample_count=paths, seed=5))
    (rolling,) = run(new_engine(), [replace(exact, context_policy="rolling")])
    assert_same_bars(rolling, rolling_paths(*pair, exact, MAX_CONTEXT))
    if lookback + horizon <= MAX_CONTEXT:
        assert_same_bars(rolling, run(new_engine(), [exact])[0])


requests = st.builds(
    series_request,
    seed=st.integers(0, 3),
    lookback=st.one_of(st.integers(1, 45), st.sampled_from([1, 31, 32, 33, 100])),
    horizon=st.one_of(st.integers(1, 10), st.sampled_from([1, 32])),
    sampling=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.01, 0.3, 1.0, 2.0, 100.0]),
        top_k=st.sampled_from([0, 1, 3, 1000]),
        top_p=st.sampled_from([1e-6, 0.3, 0.9, 1.0]),
        sample_count=st.integers(1, 5),
        seed=st.one_of(st.integers(0, 2**63 - 1), st.sampled_from([0, 2**63 - 1])),
    ),
)
policies = st.sampled_from(["exact", "exact", "rolling"])
priorities = st.sampled_from(PRIORITIES)
mixes = st.lists(
    st.tuples(requests, policies, priorities, st.integers(0, 6), st.booleans()), min_size=1, max_size=6
)


@settings(max_examples=12)
@given(mix=mixes, num_slots=st.integers(1, 8), max_chunk_bars=st.integers(1, 80))
def test_any_mix_joining_at_any_step_gives_each_what_it_gets_alone(
    new_engine, mix, num_slots, max_chunk_bars
):
    engine = new_engine(max_slots=num_slots, max_prefill_bars=max_chunk_bars)
    submitted = []
    for request, policy, priority, steps_before, is_twice in mix:
        for _ in range(steps_before):
            engine.step()
        wanted = replace(request, context_policy=policy, priority=priority)
        submitted.append([engine.submit(wanted) for _ in range(1 + is_twice)])
    while engine.has_work:
        engine.step()
    assert engine.load.running == 0
    for generations in submitted:
        (alone,) = run(new_engine(max_slots=8), [generations[0].request])
        for generation in generations:
            assert np.array_equal(generation.paths, alone)


@settings(max_examples=8)
@given(
    mix=mixes,
    num_slots=st.integers(1, 8),
    bar_block=st.sampled_from([4, 128]),
    max_chunk_bars=st.sampled_from([20, 512]),
    kernels=st.sampled_from([None, Kernels(draw, read_by_row)]),
)
def test_steps_of_fixed_shapes_and_packed_chunks_give_what_eager_steps_give(
    pair, mix, num_slots, bar_block, max_chunk_bars, kernels
):
    runs = []
    for steps in (StaticSteps, partial(EagerSteps, new_noise=CounterNoise)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(static_steps, "BAR_BLOCK", bar_block)
            patch.setattr(static_steps, "kernels_on", lambda device: kernels)
            runner = ModelRunner(
                *pair, max_context=MAX_CONTEXT, num_slots=num_slots, steps=steps, packs=steps is StaticSteps
            )
            engine = Engine(runner, max_chunk_bars=max_chunk_bars)
            generations = []
            for request, policy, priority, steps_before, _ in mix:
                for _ in range(steps_before):
                    engine.step()
                generations.append(engine.submit(replace(request, context_policy=policy, priority=priority)))
            while engine.has_work:
                engine.step()
        runs.append([generation.paths for generation in generations])
    for of_static, of_eager in zip(*runs, strict=True):
        assert_same_bars(of_static, of_eager)


@pytest.mark.parametrize(
    ("kind", "steps"), [("native", EagerSteps), ("torch", EagerSteps), ("torch", StaticSteps)]
)
@pytest.mark.parametrize(("lookback", "policy"), [(12, "exact"), (28, "exact"), (28, "rolling")])
@pytest.mark.parametrize("paths", [1, 6])
def test_suspended_paths_go_on_where_they_stopped(pair, kind, steps, lookback, policy, paths):
    network = network_of(kind, pair[0])
    runner = ModelRunner(*pair, max_context=MAX_CONTEXT, num_slots=4, steps=steps, network=network)
    engine = Engine(runner)
    sampling = SamplingParams(sample_count=paths, seed=5)
    large = replace(
        series_request(3, lookback, 12, sampling), context_policy=policy, priority="low", job="large"
    )
    (undisturbed,) = run(engine, [large])
    suspended: list[object] = []
    suspend = runner.suspend
    runner.suspend = lambda suspension: (suspended.append(suspension), suspend(suspension))
    generations = [engine.submit(large) for _ in range(4)]
    for seed in range(12):
        engine.step()
        if seed % 3 == 1:
            engine.submit(replace(series_request(seed, 8, 2), priority="high"))
    while engine.has_work:
        engine.step()
    assert len(suspended) >= 4
    for generation in generations:
        if steps is EagerSteps:
            assert np.array_equal(generation.paths, undisturbed)
        else:
            assert_same_bars(generation.paths, undisturbed)


@pytest.mark.parametrize("steps", [EagerSteps, StaticSteps])
def test_an_idle_engine_holds_nothing_of_a_series_that_ended(pair, steps):
    engine = Engine(ModelRunner(*pair, max_context=MAX_CONTEXT, num_slots=4, steps=steps))
    (generation,) = engine.run([replace(series_request(3, 12, 3), job="a")])
    ended = weakref.ref(generation)
    gc.disable()
    try:
        del generation
        assert ended() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("steps", [EagerSteps, StaticSteps])
@pytest.mark.parametrize("num_small", [1, 8])
def test_paths_whose_state_cannot_be_saved_start_over(pair, steps, num_small, monkeypatch):
    runner = ModelRunner(*pair, max_context=MAX_CONTEXT, num_slots=4, steps=steps)
    engine = Engine(runner)
    large = replace(series_request(3, 12, 12, SamplingParams(sample_count=6, seed=5)), priority="low")
    small = replace(series_request(4, 8, 6), priority="high")
    undisturbed, alone = run(engine, [large]), run(engine, [small])

    def fail(self: Network, slot: int, num_bars: int) -> None:
        raise MemoryError

    monkeypatch.setattr(Network, "copy_slot", fail)
    generation = engine.submit(large)
    for _ in range(5):
        engine.step()
    results = run(engine, [small] * num_small)
    assert_same_bars(generation.paths, undisturbed[0])
    for paths in results:
        assert_same_bars(paths, alone[0])


class CounterNoise:
    """Sequences' noise as steps of fixed shapes compute it."""

    def __init__(self, sampling: SamplingParams, vocabularies: tuple[int, int]) -> None:
        self._seed, self._vocabularies = sampling.seed, vocabularies

    def draw(self, sequence: Sequence) -> list[torch.Tensor]:
        paths = torch.tensor(sequence.paths)
        seeds, steps = (torch.full_like(paths, value) for value in (self._seed, sequence.num_generated))
        return [
            counter_noise(seeds, paths, steps, draw, vocabulary)
            for draw, vocabulary in enumerate(self._vocabularies)
        ]


@pytest.fixture
def shapes(monkeypatch) -> list[Shape]:
    """Of all steps that run."""
    shapes: list[Shape] = []
    run_shape = GraphCache.run
    monkeypatch.setattr(GraphCache, "run", lambda self, shape: (shapes.append(shape), run_shape(self, shape)))
    return shapes


def test_usual_shapes_are_met_at_warm_up_which_leaves_nothing_behind(pair, shapes, monkeypatch):
    monkeypatch.setattr(static_steps, "BAR_BLOCK", 8)
    runner = ModelRunner(*pair, max_context=MAX_CONTEXT, num_slots=6, steps=StaticSteps)
    request = series_request(3, 20, 6, SamplingParams(sample_count=6, seed=5))
    before = run(Engine(runner), [request])
    runner.warm_up()
    assert np.array_equal(run(Engine(runner), [request])[0], before[0])
    shapes.clear()
    run(Engine(runner), [request])
    run(Engine(runner), [series_request(seed, 20, 6) for seed in range(6)])
    assert set(shapes) <= set(usual_shapes(6, MAX_CONTEXT))


def test_heads_that_are_padded_for_a_gpu_change_nothing(pair, monkeypatch):
    requests = [series_request(seed, 20, 6, SamplingParams(sample_count=3, seed=seed)) for seed in range(2)]
    expected = run(build_engine(*pair, max_context=MAX_CONTEXT), requests)
    monkeypatch.setattr(network, "cached_head_dim", lambda device, head_dim: head_dim + 6)
    padded = run(build_engine(*pair, max_context=MAX_CONTEXT), requests)
    for ours, theirs in zip(padded, expected, strict=True):
        assert_same_bars(ours, theirs)


def test_full_slots_of_series_with_the_usual_number_of_paths_meet_usual_shapes(pair, shapes):
    runner = ModelRunner(*pair, max_context=MAX_CONTEXT, num_slots=128, steps=StaticSteps)
    for num_series in (2, 4):
        requests = [
            series_request(seed, 20, 2, SamplingParams(sample_count=30)) for seed in range(num_series)
        ]
        run(Engine(runner), requests)
    assert len(set(shapes)) == 2
    assert set(shapes) <= set(usual_shapes(128, MAX_CONTEXT))


def test_the_bundled_model_forecasts_the_same_closes_in_bfloat16(kind):
    """Its tokenizer's weights are steep: rounded ones would shift the closes by more than their spread."""
    bundled = load_pair("kronos-tiny")
    request = series_request(2, 400, 8, SamplingParams(sample_count=32, seed=5))
    closes = [
        run(
            build_engine(bundled.model, bundled.tokenizer, max_context=512, dtype=dtype, kind=kind), [request]
        )[0][..., CLOSE]
        for dtype in (torch.float32, torch.bfloat16)
    ]
    shift = np.abs(closes[0].mean(0) - closes[1].mean(0)) / closes[0].std(0)
    assert shift.max() < 0.5


def test_bfloat16_is_close_and_the_same_in_any_batch(pair, kind):
    """Rounded weights move probabilities a little: by the same draws nearly all tokens are the same."""
    requests = [series_request(seed, 20, 8, SamplingParams(sample_count=4, seed=seed)) for seed in range(4)]
    engines = {
        dtype: build_engine(*pair, max_context=MAX_CONTEXT, dtype=dtype, kind=kind)
        for dtype in (torch.float32, torch.bfloat16)
    }
    exact, rounded = (run(engines[dtype], requests) for dtype in (torch.float32, torch.bfloat16))
    assert not np.array_equal(exact[0], rounded[0])
    for ours, theirs in zip(rounded, exact, strict=True):
        spread = theirs.std(axis=(0, 1))
        assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)).mean(axis=0) < spread).all()
    for request, together in zip(requests, rounded, strict=True):
        (alone,) = run(engines[torch.bfloat16], [request])
        assert_same_bars(alone, together)


@pytest.mark.parametrize(
    ("lookback", "horizon", "paths"), [(10, 22, 1), (8, 24, 5), (28, 30, 2), (31, 32, 1)]
)
def test_bars_that_are_streamed_are_bit_for_bit_those_of_the_result(new_engine, lookback, horizon, paths):
    """Also if paths make room for others in between, and if the window slides."""
    request = series_request(3, lookback, horizon, SamplingParams(sample_count=paths, seed=5))
    (expected,) = run(new_engine(), [request])
    engine = new_engine(max_slots=6, max_prefill_bars=40)
    streamed = [engine.submit(replace(request, streams=True, priority="low")) for _ in range(2)]
    seen: set[int] = set()
    for number in range(1000):
        if number in (4, 20):
            engine.submit(replace(request, priority="high"))
        engine.step()
        for generation in streamed:
            if (so_far := generation.paths_so_far) is not None:
                seen.add(so_far.shape[1])
                np.testing.assert_array_equal(so_far, expected[:, : so_far.shape[1]])
        if not engine.has_work:
            break
    assert seen == {16, horizon}
    for generation in streamed:
        np.testing.assert_array_equal(generation.paths, expected)
