"""With too little memory in any phase, less runs at once. Series that fit are unchanged; others fail."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.support.workload import series_request
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import Generation, SamplingParams
from kronos_model.engine.prefill.tokens import TokenCoder
from kronos_model.engine.runner import ModelRunner
from kronos_model.engine.scheduling.path_table import Batch
from kronos_model.engine.scheduling.scheduler import STEPS_UNTIL_MORE
from kronos_model.engine.sequence import Chunk, Phase, Sequence
from kronos_model.engine.transformer.network import Network
from kronos_model.errors import KronosError
from tests.kronos_model.engine.conftest import MAX_CONTEXT, assert_same_bars
from tests.kronos_model.engine.test_engine import (
    OutOfMemoryError,
    ScriptedRunner,
    engine_for,
    finish,
    request,
    seed_of,
)

MANY_STEPS = 10_000
NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
]
REQUESTS = [
    series_request(seed, lookback, horizon, SamplingParams(sample_count=paths, seed=seed))
    for seed, (lookback, horizon, paths) in enumerate(
        [(20, 6, 1), (90, 5, 2), (28, 12, 3), (40, 32, 2), (31, 4, 1), (20, 9, 5), (25, 3, 1), (120, 7, 2)]
    )
]


def exhaust(engine: Engine) -> None:
    """Many steps: chunks become small."""
    for _ in range(MANY_STEPS):
        if engine.has_work:
            engine.step()
    assert not engine.has_work
    assert engine.load.running == engine.load.waiting == 0


def run(engine: Engine, requests: Iterable[Any] = REQUESTS) -> list[Generation]:
    generations = [engine.submit(series) for series in requests]
    exhaust(engine)
    return generations


@pytest.fixture(scope="module")
def undisturbed(pair) -> list[np.ndarray]:
    return [generation.paths for generation in run(build_engine(*pair, max_context=MAX_CONTEXT, max_slots=8))]


def failing(
    work: Callable[..., Any], is_too_much: Callable[..., bool], error: Exception
) -> Callable[..., Any]:
    """Fails once all is done, with whatever it has written by then."""

    def try_to(part: Any, *args: Any) -> Any:
        result = work(part, *args)
        if is_too_much(*args):
            raise error
        return result

    return try_to


class CrowdedRunner(ModelRunner):
    """Fails if more than two series hold memory."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.held: set[Sequence] = set()

    def compute(self, chunks: tuple[Chunk, ...]) -> None:
        self.held |= {chunk.sequence for chunk in chunks}
        self.fail_if_crowded()
        super().compute(chunks)

    def decode(self, batch: Batch) -> None:
        self.fail_if_crowded()
        super().decode(batch)

    def release(self, sequence: Sequence) -> None:
        self.held.discard(sequence)
        super().release(sequence)

    def fail_if_crowded(self) -> None:
        if len(self.held) > 2:
            raise NO_MEMORY[0]


TOO_MUCH: dict[str, tuple[type, str, Callable[..., bool]]] = {
    "lookback": (TokenCoder, "encode", lambda bars, *_: len(bars) > 70),
    "prompt": (Network, "fill", lambda tokens, *_: len(tokens) > 64),
    "paths": (
        TokenCoder,
        "decode",
        lambda series: sum(len(own) for _, paths in series for own in paths) > 64,
    ),
    "decode": (Network, "decode", lambda batch, *_: len(batch.slots) > 3),
    "decode-alone": (Network, "decode", lambda batch, *_: len(batch.slots) > 2),
}


@pytest.mark.parametrize(
    ("phase", "error"), [*zip(TOO_MUCH, cycle(NO_MEMORY), strict=False)], ids=[*TOO_MUCH]
)
def test_forecasts_are_the_same_where_only_so_much_fits_at_once(pair, undisturbed, phase, error, monkeypatch):
    engine = build_engine(*pair, max_context=MAX_CONTEXT, max_slots=8)
    part, name, is_too_much = TOO_MUCH[phase]
    if part is Network:
        part = type(engine._runner._network)
    monkeypatch.setattr(part, name, failing(getattr(part, name), is_too_much, error))
    for generation, expected in zip(run(engine), undisturbed, strict=True):
        assert_same_bars(generation.paths, expected)


def test_forecasts_are_the_same_where_what_others_hold_is_in_the_way(pair, undisturbed):
    """However small a step is: it needs that no more than two series run."""
    runner = CrowdedRunner(*pair, max_context=MAX_CONTEXT, num_slots=8)
    for generation, expected in zip(run(Engine(runner)), undisturbed, strict=True):
        assert_same_bars(generation.paths, expected)
    assert runner.held == set()


@pytest.mark.parametrize("phase", [*Phase])
def test_what_cannot_fit_fails_alone_and_frees_its_slots(phase):
    streams = phase is Phase.EARLY_BARS
    runner = ScriptedRunner(num_slots=8)
    if streams:  # a horizon that has some
        runner.max_context = 40

    def refuse(sequence: Sequence) -> None:
        if seed_of(sequence) == 3 and sequence.phase is phase:
            raise OutOfMemoryError("CUDA out of memory")

    compute, decode = runner.compute, runner.decode
    runner.compute = lambda chunks: [*map(refuse, [chunk.sequence for chunk in chunks]), compute(chunks)]
    runner.decode = lambda batch: [*map(refuse, batch.sequences), decode(batch)]
    engine = engine_for(runner)
    wanted = [request(seed, lookback=16, horizon=24 if streams else 4, paths=2) for seed in range(12)]
    generations = [engine.submit(replace(series, streams=streams)) for series in wanted]
    exhaust(engine)
    assert [generation.error and generation.error.code for generation in generations] == [
        "OUT_OF_MEMORY" if seed == 3 else None for seed in range(12)
    ]
    assert set(runner.forgotten) == set(range(12))


def test_the_first_that_came_is_never_put_off_for_the_others_and_new_ones_keep_coming():
    runner = ScriptedRunner(num_slots=8)
    engine = engine_for(runner)
    decode = runner.decode

    def decode_first_alone(batch: Batch) -> None:
        if any(seed_of(sequence) == 0 for sequence in batch.sequences) and engine.load.running > 1:
            raise MemoryError
        decode(batch)

    runner.decode = decode_first_alone
    runner.max_context = 4 * STEPS_UNTIL_MORE
    first = engine.submit(request(0, horizon=3 * STEPS_UNTIL_MORE))
    others = []
    for seed in range(1, 4 * STEPS_UNTIL_MORE):
        if seed % 16 == 0:
            others.append(engine.submit(request(seed, horizon=1)))
        engine.step()
        if first.done:
            break
    assert first.error is None
    assert first.done
    # It decoded each of its bars once: it never started over.
    assert sum(seed == 0 for step in runner.steps for seed, _ in step) == 3 * STEPS_UNTIL_MORE
    runner.decode = decode
    while engine.has_work:
        engine.step()
    assert all(generation.error is None for generation in others)


def test_a_job_of_many_paths_runs_in_rounds_as_small_as_the_memory():
    runner = ScriptedRunner(num_slots=8)
    runner.max_paths = 3
    engine = engine_for(runner)
    generation = engine.submit(request(1, paths=8, horizon=3))
    finish(engine)
    assert generation.paths[:, 0, 0].tolist() == list(range(8))
    assert generation.num_bars_done == generation.num_bars_total
    assert max(paths for step in runner.steps for _, paths in step) == 2
    durations = generation.timings.durations_s()
    assert all(duration >= 0 for duration in durations.values())


def test_paths_that_were_done_before_are_not_computed_again():
    runner = ScriptedRunner(num_slots=4)
    engine = engine_for(runner)
    generation = engine.submit(request(1, paths=8, horizon=2))
    for _ in range(3):
        engine.step()
    runner.max_paths = 2
    finish(engine)
    assert generation.paths[:, 0, 0].tolist() == list(range(8))
    assert [paths for step in runner.steps for _, paths in step] == [4, 4, 4, 2, 2, 2, 2]


def test_cancelling_what_was_put_off_frees_it():
    runner = ScriptedRunner(num_slots=4)
    engine = engine_for(runner)
    first, second = engine.submit(request(1, horizon=9)), engine.submit(request(2, horizon=9))
    engine.step()
    decode = runner.decode
    runner.decode = lambda batch: (_ for _ in ()).throw(MemoryError)
    engine.step()
    runner.decode = decode
    engine.step()  # before it computes, the newest series makes room
    assert (engine.load.running, engine.load.waiting) == (1, 1)
    engine.cancel(second)
    assert isinstance(second.error, KronosError)
    engine.cancel(first)
    assert (engine.load.running, engine.load.waiting) == (0, 0)
