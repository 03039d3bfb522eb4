"""The engine's decisions, with a runner that computes nothing. No torch."""

import time
from collections.abc import Sequence as Many
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.support.workload import series_request
from kronos_model.engine.engine import Engine
from kronos_model.engine.sequence import SamplingParams, Sequence, SeriesRequest
from kronos_model.errors import Cancelled, DeadlineExceeded, InputError, KronosError


class ScriptedRunner:
    """Notes what runs together; fails where told to."""

    max_context = 16

    def __init__(self) -> None:
        self.steps: list[list[tuple[int, int]]] = []
        self.released: list[Sequence] = []
        self.poisoned: set[int] = set()  # seeds whose steps fail
        self.poisoned_at_the_end: set[int] = set()

    def run(self, sequences: Many[Sequence]) -> None:
        if any(sequence.request.sampling.seed in self.poisoned for sequence in sequences):
            raise RuntimeError("a kernel failed")
        self.steps.append([(s.request.sampling.seed, s.num_paths) for s in sequences])

    def detokenize(self, sequence: Sequence) -> np.ndarray:
        if sequence.request.sampling.seed in self.poisoned_at_the_end:
            raise RuntimeError("out of memory")
        first, paths = sequence.first_path, sequence.num_paths
        bars = np.arange(first, first + paths, dtype=np.float32)[:, None, None]
        return np.broadcast_to(bars, (paths, sequence.request.horizon, 6))

    def release(self, sequence: Sequence) -> None:
        self.released.append(sequence)


def request(seed: int, *, lookback: int = 8, horizon: int = 2, paths: int = 1) -> SeriesRequest:
    return series_request(0, lookback, horizon, SamplingParams(sample_count=paths, seed=seed))


@pytest.fixture
def runner() -> ScriptedRunner:
    return ScriptedRunner()


def finish(engine: Engine) -> None:
    for _ in range(100):
        if not engine.has_work:
            return
        engine.step()
    pytest.fail("the engine does not come to an end")


def test_sequences_run_together_and_leave_when_done(runner):
    engine = Engine(runner)
    engine.submit(request(1, horizon=1))
    engine.submit(request(2, horizon=3))
    finish(engine)
    assert runner.steps == [[(1, 1), (2, 1)], [(2, 1)], [(2, 1)]]
    assert engine.scheduler.slots_used == 0
    assert len(runner.released) == 2


def test_admission_is_in_arrival_order_and_waits_for_slots(runner):
    engine = Engine(runner, max_slots=4)
    for seed, paths in ((1, 3), (2, 2), (3, 1)):
        engine.submit(request(seed, paths=paths, horizon=1))
    finish(engine)
    # 3 would fit beside 1, but 2 came first.
    assert runner.steps == [[(1, 3)], [(2, 2), (3, 1)]]


def test_more_paths_than_slots_run_in_rounds_and_come_back_in_order(runner):
    engine = Engine(runner, max_slots=2)
    generation = engine.submit(request(1, paths=5, horizon=1))
    finish(engine)
    assert runner.steps == [[(1, 2)], [(1, 2)], [(1, 1)]]
    assert generation.paths[:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert generation.num_bars_done == generation.num_bars_total == 5


def test_prefill_of_a_step_is_bounded(runner):
    engine = Engine(runner, max_prefill_tokens=16)
    for seed in (1, 2, 3):
        engine.submit(request(seed, lookback=8, horizon=1))
    finish(engine)
    assert runner.steps == [[(1, 1), (2, 1)], [(3, 1)]]


def test_a_lookback_beyond_the_bound_runs_alone(runner):
    engine = Engine(runner, max_prefill_tokens=4)
    engine.submit(request(1, lookback=8, horizon=1))
    engine.submit(request(2, lookback=8, horizon=1))
    finish(engine)
    assert runner.steps == [[(1, 1)], [(2, 1)]]


def test_a_horizon_beyond_the_context_is_refused_with_its_code(runner):
    with pytest.raises(InputError, match="max_context 16") as refused:
        Engine(runner).submit(request(1, horizon=17))
    assert refused.value.code == "PRED_LEN_TOO_LONG"
    assert refused.value.field == "pred_len"


def test_one_failing_sequence_takes_no_other_along(runner):
    runner.poisoned = {2}
    engine = Engine(runner)
    good, bad, fine = (engine.submit(request(seed)) for seed in (1, 2, 3))
    finish(engine)
    assert good.paths.shape == fine.paths.shape == (1, 2, 6)
    with pytest.raises(KronosError, match="RuntimeError"):
        _ = bad.paths
    assert engine.scheduler.slots_used == 0


class OutOfMemoryError(RuntimeError):
    """Named as PyTorch names its own."""


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (OutOfMemoryError("CUDA out of memory"), "OUT_OF_MEMORY"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), "OUT_OF_MEMORY"),
        (RuntimeError("a kernel failed"), "INTERNAL"),
    ],
)
def test_what_became_of_a_failed_series_is_coded(runner, monkeypatch, failure, code):
    def fail(_: Many[Sequence]) -> None:
        raise failure

    monkeypatch.setattr(runner, "run", fail)
    generation = (engine := Engine(runner)).submit(request(1))
    finish(engine)
    assert generation.error.code == code


def test_failing_on_the_way_back_ends_that_one_only(runner):
    runner.poisoned_at_the_end = {1}
    engine = Engine(runner)
    bad, good = engine.submit(request(1)), engine.submit(request(2))
    finish(engine)
    assert isinstance(bad.error, KronosError)
    assert good.paths.shape == (1, 2, 6)
    assert engine.scheduler.slots_used == 0


def test_cancelling_frees_running_and_waiting_rounds(runner):
    engine = Engine(runner, max_slots=2)
    generation = engine.submit(request(1, paths=4, horizon=5))
    behind = engine.submit(request(2, horizon=1))
    engine.step()
    engine.cancel(generation)
    assert isinstance(generation.error, Cancelled)
    finish(engine)
    assert runner.steps == [[(1, 2)], [(2, 1)]]
    assert behind.done
    engine.cancel(behind)  # done already: stays as it is
    assert behind.error is None


def test_a_passed_deadline_ends_running_and_waiting_series(runner):
    engine = Engine(runner, max_slots=1)
    late = time.monotonic() + 0.02
    running = engine.submit(replace(request(1, horizon=9), deadline=late))
    waiting = engine.submit(replace(request(2), deadline=late))
    engine.step()
    time.sleep(0.03)
    engine.step()
    assert isinstance(running.error, DeadlineExceeded)
    assert isinstance(waiting.error, DeadlineExceeded)
    assert not engine.has_work


def test_a_step_returns_what_ended_with_it_once(runner):
    engine = Engine(runner, max_slots=1)
    good, bad = engine.submit(request(1, paths=2, horizon=1)), engine.submit(request(2))
    assert engine.step() == []
    engine.cancel(bad)
    assert engine.step() == [good, bad]
    assert engine.step() == []
    assert not engine.has_work


def test_timings_add_up(runner):
    engine = Engine(runner)
    generation = engine.submit(request(1))
    finish(engine)
    durations = generation.timings.durations_s()
    timings = generation.timings
    assert sum(durations.values()) == pytest.approx(timings.ended - timings.submitted)
    assert all(duration >= 0 for duration in durations.values())
