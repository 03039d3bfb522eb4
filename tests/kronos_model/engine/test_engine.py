"""The engine's decisions, with a runner that computes nothing. No torch."""

import time
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.support.workload import series_request
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import Generation, SamplingParams, SeriesRequest
from kronos_model.engine.reports import EngineLoad, StepReport
from kronos_model.engine.scheduling.path_table import Batch
from kronos_model.engine.scheduling.scheduler import STEPS_UNTIL_MORE
from kronos_model.engine.scheduling.slots import Suspension
from kronos_model.engine.sequence import Chunk, Phase, Sequence
from kronos_model.errors import Cancelled, DeadlineExceeded, InputError, KronosError


class OutOfMemoryError(RuntimeError):
    """Named as PyTorch names its own."""


class ScriptedRunner:
    """Records what runs together, and fails on demand. Seeds name the series."""

    max_context = 16

    def __init__(self, num_slots: int = 64) -> None:
        self.num_slots = num_slots
        self.chunks: list[list[tuple[int, Phase, int]]] = []  # of each step: seed, phase, bars
        self.steps: list[list[tuple[int, int]]] = []  # of each step: seed, paths
        self.suspended: list[tuple[int, int]] = []  # seed, paths
        self.forgotten: list[int] = []
        self.poisoned: dict[int, Exception] = {}  # by seed: what its steps raise
        self.poisoned_phase: dict[int, Phase] = {}  # by seed: the phase whose chunks fail
        self.max_paths = 1 << 30  # more in one step are out of memory
        self.is_device_lost = False

    def prepare(self) -> bool:
        return False

    def compute(self, chunks: tuple[Chunk, ...]) -> None:
        for chunk in chunks:
            if self.poisoned_phase.get(seed_of(chunk.sequence)) is chunk.phase:
                raise RuntimeError("a kernel failed")
        self.chunks.append([(seed_of(one.sequence), one.phase, one.num_bars) for one in chunks])

    def decode(self, batch: Batch) -> None:
        sequences = batch.sequences
        for sequence in sequences:
            if seed_of(sequence) in self.poisoned:
                raise self.poisoned[seed_of(sequence)]
        if sum(sequence.num_paths for sequence in sequences) > self.max_paths:
            raise OutOfMemoryError("CUDA out of memory")
        self.steps.append([(seed_of(one), one.num_paths) for one in sequences])

    def suspend(self, suspension: Suspension) -> None:
        sequence = suspension.sequence
        self.suspended.append((seed_of(sequence), sequence.num_paths))

    def leave_slots(self, sequence: Sequence) -> None:
        assert sequence.num_generated == sequence.request.horizon

    def paths(self, sequence: Sequence) -> np.ndarray:
        first, paths = sequence.first_path, sequence.num_paths
        bars = np.arange(first, first + paths, dtype=np.float32)[:, None, None]
        return np.broadcast_to(bars, (paths, sequence.num_generated, 6))

    def release(self, sequence: Sequence) -> None:
        """Nothing is held."""

    def forget(self, generation: Generation) -> None:
        self.forgotten.append(generation.request.sampling.seed)

    def is_lost(self) -> bool:
        return self.is_device_lost


def seed_of(sequence: Sequence) -> int:
    return sequence.request.sampling.seed


def request(seed: int, *, lookback: int = 8, horizon: int = 2, paths: int = 1) -> SeriesRequest:
    return series_request(0, lookback, horizon, SamplingParams(sample_count=paths, seed=seed))


def engine_for(runner: ScriptedRunner, max_chunk_bars: int = 512) -> Engine:
    return Engine(runner, max_chunk_bars=max_chunk_bars)


@pytest.fixture
def runner() -> ScriptedRunner:
    return ScriptedRunner()


def finish(engine: Engine) -> None:
    for _ in range(200):
        if not engine.has_work:
            assert engine.load.running == engine.load.waiting == 0
            return
        engine.step()
    pytest.fail("the engine does not come to an end")


def test_sequences_run_together_and_leave_when_done(runner):
    engine = engine_for(runner)
    engine.submit(request(1, horizon=1))
    engine.submit(request(2, horizon=3))
    finish(engine)
    assert runner.steps == [[(1, 1), (2, 1)], [(2, 1)], [(2, 1)]]
    assert sorted(runner.forgotten) == [1, 2]


def test_a_series_joins_between_two_steps_of_another(runner):
    engine = engine_for(runner)
    engine.submit(request(1, horizon=4))
    engine.step()
    engine.step()
    engine.submit(request(2, horizon=2))
    finish(engine)
    assert runner.steps == [[(1, 1)], [(1, 1)], [(1, 1), (2, 1)], [(1, 1), (2, 1)]]


def test_jobs_that_wait_for_slots_count_as_waiting():
    runner = ScriptedRunner(num_slots=4)
    engine = engine_for(runner)
    for seed, paths in ((1, 3), (2, 2), (3, 1)):
        engine.submit(request(seed, paths=paths, horizon=3))
    engine.step()
    engine.step()
    assert engine.load == EngineLoad(running=4, waiting=2, slots=4)
    finish(engine)


def test_more_paths_than_slots_run_in_rounds_on_one_prompt():
    runner = ScriptedRunner(num_slots=2)
    engine = engine_for(runner)
    generation = engine.submit(request(1, paths=5, horizon=1))
    finish(engine)
    assert runner.steps == [[(1, 2)], [(1, 2)], [(1, 1)]]
    phases = [phase for step in runner.chunks for _, phase, _ in step]
    assert phases == [Phase.LOOKBACK, Phase.BARS, Phase.BARS, Phase.BARS]
    assert generation.paths[:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert generation.num_bars_done == generation.num_bars_total == 5


def test_the_slots_that_the_last_round_leaves_over_serve_others():
    runner = ScriptedRunner(num_slots=2)
    engine = engine_for(runner)
    engine.submit(request(1, paths=3, horizon=3))
    engine.submit(request(2, horizon=1))
    finish(engine)
    assert [(1, 1), (2, 1)] in [sorted(step) for step in runner.steps]


def test_what_a_step_computes_beside_the_newest_bars_is_bounded(runner):
    engine = engine_for(runner, max_chunk_bars=16)
    for seed in (1, 2, 3):
        engine.submit(request(seed, lookback=8, horizon=9))
    finish(engine)
    assert runner.chunks[:2] == [
        [(1, Phase.LOOKBACK, 8), (2, Phase.LOOKBACK, 8)],
        [(3, Phase.LOOKBACK, 8)],
    ]
    assert max(sum(bars for *_, bars in step) for step in runner.chunks) <= 16


def test_a_long_lookback_is_cut_and_holds_nobody_up_for_longer_than_a_chunk(runner):
    engine = engine_for(runner, max_chunk_bars=4)
    engine.submit(request(1, lookback=4, horizon=4))
    engine.step()
    engine.submit(request(2, lookback=10, horizon=1))
    finish(engine)
    assert [chunk for step in runner.chunks for chunk in step if chunk[0] == 2][:3] == [
        (2, Phase.LOOKBACK, 4),
        (2, Phase.LOOKBACK, 4),
        (2, Phase.LOOKBACK, 2),
    ]
    # While 2 was computed chunk by chunk, 1 went on in every step.
    assert runner.steps[:3] == [[(1, 1)]] * 3


def test_a_window_that_slides_is_computed_anew_in_turn_with_others(runner):
    engine = engine_for(runner, max_chunk_bars=8)
    engine.submit(request(1, lookback=16, horizon=3))
    engine.submit(request(2, lookback=4, horizon=12))
    finish(engine)
    of_1 = [(phase, bars) for step in runner.chunks for seed, phase, bars in step if seed == 1]
    assert of_1 == [
        (Phase.LOOKBACK, 8),
        (Phase.LOOKBACK, 8),
        (Phase.PROMPT, 8),
        (Phase.PROMPT, 6),
        (Phase.WINDOW_PATHS, 1),
        (Phase.PROMPT, 8),
        (Phase.PROMPT, 5),
        (Phase.WINDOW_PATHS, 2),
        (Phase.BARS, 3),
    ]
    # 2 generated a bar in every step that there was, those in which 1 could not decode included.
    assert all((2, 1) in step for step in runner.steps[-12:])


def test_a_window_that_rolls_is_never_computed_anew(runner):
    engine = engine_for(runner)
    engine.submit(replace(request(1, lookback=16, horizon=3), context_policy="rolling"))
    finish(engine)
    assert [phase for step in runner.chunks for _, phase, _ in step] == [Phase.LOOKBACK, Phase.BARS]


@pytest.mark.parametrize("policy", ["exact", "rolling"])
def test_rounds_cache_the_prompt_anew_where_a_window_went_over_it(policy):
    runner = ScriptedRunner(num_slots=1)
    engine = engine_for(runner)
    engine.submit(replace(request(1, lookback=16, horizon=2, paths=2), context_policy=policy))
    finish(engine)
    second_round = [phase for step in runner.chunks for _, phase, _ in step]
    second_round = second_round[second_round.index(Phase.BARS) + 1 :]
    assert second_round[0] is Phase.PROMPT
    assert runner.steps == [[(1, 1)]] * 4


def test_a_horizon_beyond_the_context_is_refused_with_its_code(runner):
    with pytest.raises(InputError, match="max_context 16") as refused:
        engine_for(runner).submit(request(1, horizon=17))
    assert refused.value.code == "PRED_LEN_TOO_LONG"
    assert refused.value.field == "pred_len"


@pytest.mark.parametrize("phase", [Phase.LOOKBACK, Phase.BARS, Phase.PROMPT, Phase.WINDOW_PATHS])
def test_failing_in_any_phase_ends_that_series_only(runner, phase):
    runner.poisoned_phase = {1: phase}
    engine = engine_for(runner)
    bad, good = (engine.submit(request(seed, lookback=16)) for seed in (1, 2))
    finish(engine)
    assert isinstance(bad.error, KronosError)
    assert good.paths.shape == (1, 2, 6)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (OutOfMemoryError("CUDA out of memory"), "OUT_OF_MEMORY"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), "OUT_OF_MEMORY"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"), "OUT_OF_MEMORY"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "OUT_OF_MEMORY"),
        (MemoryError(), "OUT_OF_MEMORY"),
        (KronosError("of our own"), "INTERNAL"),
        (RuntimeError("a kernel failed"), "INTERNAL"),
    ],
)
def test_a_failed_series_has_an_error_code(runner, failure, code):
    runner.poisoned = {1: failure}
    generation = (engine := engine_for(runner)).submit(request(1))
    finish(engine)
    assert generation.error.code == code
    cause = generation.error.__cause__
    assert cause is None or cause.__traceback__ is None  # its frames would keep tensors


@pytest.mark.parametrize("streams", [False, True])
def test_bars_that_cannot_be_had_end_that_series_only(runner, monkeypatch, streams):
    def fail(sequence: Sequence) -> np.ndarray:
        if seed_of(sequence) == 1:
            raise MemoryError
        return ScriptedRunner.paths(runner, sequence)

    monkeypatch.setattr(runner, "paths", fail)
    runner.max_context = 64
    engine = engine_for(runner)
    bad = engine.submit(replace(request(1, horizon=48), streams=streams))
    good = engine.submit(request(2, horizon=48))
    finish(engine)
    assert bad.error.code == "OUT_OF_MEMORY"
    assert good.paths.shape == (1, 48, 6)


class AcceleratorError(RuntimeError):
    """Named as PyTorch names its own."""


DEVICE_ERRORS = [
    AcceleratorError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
]


@pytest.mark.parametrize("error", DEVICE_ERRORS)
def test_a_device_that_is_lost_ends_the_engine_not_the_series(runner, error):
    runner.poisoned, runner.is_device_lost = {1: error}, True
    engine = engine_for(runner)
    generations = [engine.submit(request(seed)) for seed in (1, 2)]
    with pytest.raises(type(error)):
        finish(engine)
    assert not any(generation.done for generation in generations)


@pytest.mark.parametrize("error", DEVICE_ERRORS)
def test_after_an_error_from_which_the_device_recovers_only_its_series_ends(runner, error):
    runner.poisoned = {1: error}
    engine = engine_for(runner)
    bad, good = (engine.submit(request(seed)) for seed in (1, 2))
    finish(engine)
    assert bad.error.code == "INTERNAL"
    assert good.paths.shape == (1, 2, 6)
    with pytest.raises(KronosError, match=type(error).__name__):
        _ = bad.paths


def test_a_device_without_memory_is_not_lost(runner):
    runner.poisoned, runner.is_device_lost = {1: OutOfMemoryError("CUDA out of memory")}, True
    generation = (engine := engine_for(runner)).submit(request(1))
    finish(engine)
    assert generation.error.code == "OUT_OF_MEMORY"


def test_a_chunk_that_is_out_of_memory_is_tried_in_parts(runner, monkeypatch):
    def compute(chunks: tuple[Chunk, ...]) -> None:
        if sum(chunk.num_bars for chunk in chunks) > 100:
            raise OutOfMemoryError("CUDA out of memory")
        ScriptedRunner.compute(runner, chunks)

    monkeypatch.setattr(runner, "compute", compute)
    runner.max_context = 1000
    engine = engine_for(runner, max_chunk_bars=512)
    generations = [engine.submit(request(seed, lookback=400)) for seed in (1, 2)]
    finish(engine)
    assert all(generation.error is None for generation in generations)


def test_a_newcomer_waits_for_no_more_than_the_others_next_chunk(runner):
    engine = engine_for(runner, max_chunk_bars=4)
    engine.submit(request(1, lookback=100, horizon=1))
    engine.step()
    engine.submit(request(2, lookback=4, horizon=1))
    engine.step()
    engine.step()
    assert [seed for step in runner.chunks for seed, *_ in step] == [1, 1, 2]


def test_out_of_memory_halves_what_is_admitted_and_all_come_to_their_end(runner):
    runner.max_paths = 3
    engine = engine_for(runner)
    generations = [engine.submit(request(seed, horizon=3)) for seed in range(8)]
    later = [engine.submit(request(seed, horizon=3)) for seed in range(8, 20)]
    finish(engine)
    assert all(one.error is None for one in (*generations, *later))
    assert max(len(step) for step in runner.steps) <= 3
    # After a while more is tried again.
    runner.max_paths = 64
    for _ in range(6 * STEPS_UNTIL_MORE):
        engine.step()
    together = [engine.submit(request(seed, horizon=1)) for seed in range(64)]
    finish(engine)
    assert all(one.error is None for one in together)
    assert len(runner.steps[-1]) == 64


def test_cancelling_frees_what_runs_and_what_waits():
    runner = ScriptedRunner(num_slots=2)
    engine = engine_for(runner)
    generation = engine.submit(request(1, paths=4, horizon=5))
    engine.step()
    behind = engine.submit(request(2, horizon=1))
    engine.cancel(generation)
    assert isinstance(generation.error, Cancelled)
    finish(engine)
    assert runner.steps == [[(1, 2)], [(2, 1)]]
    assert behind.done
    engine.cancel(behind)  # done already: stays as it is
    assert behind.error is None


def test_a_passed_deadline_ends_running_and_waiting_series():
    engine = engine_for(ScriptedRunner(num_slots=1))
    late = time.monotonic() + 0.02
    running = engine.submit(replace(request(1, horizon=9), deadline=late))
    waiting = engine.submit(replace(request(2), deadline=late))
    engine.step()
    time.sleep(0.03)
    engine.step()
    assert isinstance(running.error, DeadlineExceeded)
    assert isinstance(waiting.error, DeadlineExceeded)
    assert not engine.has_work


def test_a_step_returns_what_ended_with_it_once():
    engine = engine_for(ScriptedRunner(num_slots=1))
    good, bad = engine.submit(request(1, horizon=1)), engine.submit(request(2))
    assert engine.step() == []
    engine.cancel(bad)
    assert engine.step() == [bad, good]
    assert engine.step() == []
    assert not engine.has_work


def test_a_step_reports_its_work(runner):
    engine = engine_for(runner)
    engine.submit(request(1, lookback=8, paths=3))
    engine.step()
    report = engine.last_step
    assert (report.num_prefill_bars, report.num_bars) == (8, 3)
    assert [len(times) for times in (report.prefill_s, report.decode_s)] == [1, 1]
    finish(engine)
    engine.step()
    assert engine.last_step == StepReport()


class LateMark:
    """Of a device that comes to each mark a second after the one before, and only when time has passed."""

    now_s = 0.0
    made = 0

    def __init__(self) -> None:
        LateMark.made += 1
        self.due_s = float(LateMark.made)

    def query(self) -> bool:
        return self.due_s <= LateMark.now_s

    def synchronize(self) -> None:
        LateMark.now_s = max(LateMark.now_s, self.due_s)

    def elapsed_time(self, end: "LateMark") -> float:
        assert end.query()
        return 1000 * (end.due_s - self.due_s)


@pytest.fixture
def late_engine(runner, monkeypatch):
    monkeypatch.setattr(LateMark, "made", 0)
    monkeypatch.setattr(LateMark, "now_s", 0.0)
    return Engine(runner, new_mark=LateMark)


def test_the_device_is_at_most_two_phases_behind_when_a_step_returns(late_engine):
    """So a new job waits for two steps at most, not for all that are left of the others."""
    late_engine.submit(request(1, lookback=8, horizon=12))
    come_to = []
    for _ in range(6):  # of a step's three marks, the second ends its prefill and the third its bar
        late_engine.step()
        come_to.append(LateMark.now_s)
    assert come_to == [0, 2, 3, 6, 9, 12]


def test_a_phase_lasts_until_the_device_has_finished_it(late_engine):
    """And the engine does not wait for that: it reports the time with a later step."""
    engine = late_engine
    generation = engine.submit(request(1, lookback=8, horizon=5))
    engine.step()  # marks 1 to 3
    assert (engine.last_step.prefill_s, engine.last_step.decode_s) == ((), ())
    LateMark.now_s = 2.0
    engine.step()  # and two that begin a phase
    assert (engine.last_step.prefill_s, engine.last_step.decode_s) == ((1.0,), ())
    assert generation.timings.first_bar is None
    LateMark.now_s = 6.0
    before = time.monotonic()
    engine.step()
    assert (engine.last_step.prefill_s, engine.last_step.decode_s) == ((), (1.0, 1.0))
    # It finished the first bar three seconds before the second one, which it has just finished.
    assert generation.timings.first_bar == pytest.approx(before - 3, abs=2)
    finish(engine)
    assert generation.timings.ended > generation.timings.first_bar


def test_timings_add_up(runner):
    engine = engine_for(runner)
    generation = engine.submit(request(1))
    finish(engine)
    durations = generation.timings.durations_s()
    timings = generation.timings
    assert sum(durations.values()) == pytest.approx(timings.ended - timings.submitted)
    assert all(duration >= 0 for duration in durations.values())


def test_a_streamed_series_shows_the_bars_that_all_its_paths_have(runner):
    runner.max_context = 64
    engine = engine_for(runner, max_chunk_bars=20)
    streamed = engine.submit(replace(request(1, horizon=48, paths=3), streams=True))
    engine.submit(request(2, horizon=48))
    shown = []
    while engine.has_work:
        engine.step()
        so_far = streamed.paths_so_far
        shown.append(0 if so_far is None else so_far.shape[1])
    assert sorted(set(shown)) == [0, 16, 32, 48]
    early = [chunk for step in runner.chunks for chunk in step if chunk[1] is Phase.EARLY_BARS]
    assert early == [(1, Phase.EARLY_BARS, 16)] * 3 + [(1, Phase.EARLY_BARS, 32)] * 3


@pytest.mark.parametrize(("horizon", "num_early"), [(21, 0), (22, 1), (42, 1), (43, 2)])
def test_bars_are_not_computed_early_in_the_last_quarter(runner, horizon, num_early):
    runner.max_context = 64
    engine = engine_for(runner)
    engine.submit(replace(request(1, horizon=horizon), streams=True))
    finish(engine)
    assert sum(chunk[1] is Phase.EARLY_BARS for step in runner.chunks for chunk in step) == num_early


def test_bars_that_were_shown_stay_in_the_result():
    """Where rounding depends on a batch, they would change."""
    generation = Generation(replace(request(1, horizon=3), streams=True))
    shown, later = np.ones((1, 2, 6), np.float32), np.full((1, 3, 6), 2, np.float32)
    generation.add_early_bars(0, shown)
    generation.accept(0, later)
    assert generation.paths[0, :, 0].tolist() == [1, 1, 2]
    assert generation.paths_so_far is not None
    assert np.array_equal(generation.paths_so_far, generation.paths)


def test_paths_that_wait_for_slots_hold_back_the_bars_of_a_streamed_series():
    runner = ScriptedRunner(num_slots=2)
    runner.max_context = 64
    engine = engine_for(runner)
    streamed = engine.submit(replace(request(1, horizon=32, paths=3), streams=True))
    while streamed.num_bars_done < 2 * 32:
        assert streamed.paths_so_far is None
        engine.step()
    finish(engine)
    assert streamed.paths_so_far.shape == (3, 32, 6)
