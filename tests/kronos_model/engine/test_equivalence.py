"""Cached equals recomputed; batched, in any order and in rounds, equals alone."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.support.naive import naive_paths
from benchmarks.support.workload import series_request
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.sequence import SamplingParams, SeriesRequest
from tests.kronos_model.engine.conftest import MAX_CONTEXT

TOLERANCE = 1e-5


@pytest.fixture
def new_engine(pair) -> Callable[..., Engine]:
    return partial(build_engine, *pair, max_context=MAX_CONTEXT)


def run(engine: Engine, requests: list[SeriesRequest]) -> list[np.ndarray]:
    generations = [engine.submit(request) for request in requests]
    while engine.has_work:
        engine.step()
    return [generation.paths for generation in generations]


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    """To 1e-5 of each column's range; one differing token moves a bar by far more."""
    assert actual.shape == expected.shape
    scale = np.abs(expected).max(axis=(0, 1), keepdims=True)
    assert (np.abs(actual - expected) <= TOLERANCE * scale + 1e-9).all()


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
    assert_same(cached, naive_paths(*pair, request, MAX_CONTEXT))


def test_paths_differ_from_each_other_and_seeds_from_each_other(new_engine):
    first, again, other = run(
        new_engine(),
        [series_request(3, 20, 8, SamplingParams(sample_count=4, seed=seed)) for seed in (1, 1, 2)],
    )
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
    assert not np.allclose(first[0], first[1])


def test_rounds_give_the_paths_of_one_go(new_engine):
    request = series_request(4, 20, 6, SamplingParams(sample_count=7, seed=9))
    (together,) = run(new_engine(max_slots=7), [request])
    (in_rounds,) = run(new_engine(max_slots=3), [request])
    assert_same(in_rounds, together)


requests = st.builds(
    series_request,
    seed=st.integers(0, 3),
    lookback=st.integers(1, 45),
    horizon=st.integers(1, 10),
    sampling=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.3, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 3, 1000]),
        top_p=st.sampled_from([0.3, 0.9, 1.0]),
        sample_count=st.integers(1, 3),
        seed=st.integers(0, 2**63 - 1),
    ),
)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    jobs=st.lists(st.tuples(requests, st.integers(0, 6)), min_size=2, max_size=5),
    max_slots=st.integers(1, 8),
    max_prefill_bars=st.integers(1, 60),
)
def test_any_mix_joining_at_any_step_gives_each_what_it_gets_alone(
    new_engine, jobs, max_slots, max_prefill_bars
):
    engine = new_engine(max_slots=max_slots, max_prefill_bars=max_prefill_bars)
    generations = []
    for request, steps_before in jobs:
        for _ in range(steps_before):
            engine.step()
        generations.append(engine.submit(request))
    while engine.has_work:
        engine.step()
    assert engine.load.running == 0
    for (request, _), generation in zip(jobs, generations, strict=True):
        (alone,) = run(new_engine(), [request])
        assert_same(generation.paths, alone)
