"""The engines' thread: jobs from many threads, and how each ends. The engines compute nothing."""

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.support.workload import series_request
from kronos_model.engine.generation import SeriesRequest
from kronos_model.engine.reports import EngineLoad
from kronos_model.errors import Cancelled, InputError, KronosError
from tests.waiting import await_true
from tests.worker.inference.fake_engine import (
    MAX_CONTEXT,
    MAX_SLOTS,
    WAIT_S,
    FakeEngine,
    FakeGeneration,
    params,
)
from tests.worker.inference.runs import added, ended, load_of, result_of, submit
from worker.inference.engine_thread import EngineDied, EngineThread, JobRun, ModelEngine

LONG = 60
IDLE = EngineLoad(0, 0, MAX_SLOTS)


class Notes:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int, EngineLoad]] = []
        self.ended: list[tuple[str, int, str | None]] = []

    def observe_step(self, model_id, report, load) -> None:
        self.steps.append((model_id, report.num_bars, load))

    def observe_generation(self, model_id, generation) -> None:
        error = generation.error
        self.ended.append((model_id, generation.seed, None if error is None else error.code))


def request(seed: int, *, horizon: int = 2, paths: int = 1) -> SeriesRequest:
    return series_request(0, 8, horizon, params(seed, paths))


def seeds_of(generations: list[FakeGeneration]) -> list[int]:
    assert all(generation.done and generation.error is None for generation in generations)
    return [generation.seed for generation in generations]


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def deaths() -> list[str]:
    return []


@pytest.fixture
def engine_thread(notes: Notes, deaths: list[str]) -> Iterator[EngineThread]:
    engine_thread = EngineThread([notes], on_death=lambda: deaths.append("died"))
    engine_thread.start()
    yield engine_thread
    engine_thread.stop()
    assert not engine_thread.is_alive


@pytest.fixture
def engine(engine_thread: EngineThread) -> Iterator[FakeEngine]:
    """Torn down before the engines' thread: a gate that a failed test left closed must not hold it up."""
    engine = FakeEngine("a")
    yield engine
    engine.gate.set()


@pytest.fixture
def hosted(engine_thread: EngineThread, engine: FakeEngine) -> ModelEngine:
    return added(engine_thread, ModelEngine("model-a", engine))


def test_each_of_many_threads_gets_its_own_result(engine_thread, engine, hosted):
    def submit_and_wait(first_seed: int) -> list[int]:
        requests = [request(first_seed + index) for index in range(3)]
        return seeds_of(ended(engine_thread, submit(engine_thread, f"job-{first_seed}", requests, hosted)))

    first_seeds = range(0, 320, 10)
    with ThreadPoolExecutor(32) as threads:
        results = list(threads.map(submit_and_wait, first_seeds))
    assert results == [[seed, seed + 1, seed + 2] for seed in first_seeds]
    assert load_of(engine_thread) == hosted.load == IDLE


def test_jobs_of_different_threads_share_a_step(engine_thread, engine, hosted):
    engine.gate.clear()
    first = submit(engine_thread, "first", [request(1, horizon=3)], hosted)
    assert engine.in_step.wait(WAIT_S)
    others = [submit(engine_thread, str(seed), [request(seed)], hosted) for seed in (2, 3)]
    engine.gate.set()
    for run in (first, *others):
        ended(engine_thread, run)
    assert engine.steps == [[1], [1, 2, 3], [1, 2, 3]]


def test_jobs_that_are_submitted_together_share_their_first_step(engine_thread, engine, hosted):
    runs = [JobRun(str(seed), [request(seed)], hosted) for seed in (1, 2, 3)]
    engine_thread.submit(runs)
    assert [seeds_of(ended(engine_thread, run)) for run in runs] == [[1], [2], [3]]
    assert engine.steps[0] == [1, 2, 3]


def test_a_job_that_was_cancelled_before_it_is_submitted_never_runs(engine_thread, engine, hosted):
    cancelled, other = (JobRun(str(seed), [request(seed)], hosted) for seed in (1, 2))
    engine_thread.cancel(cancelled)
    engine_thread.submit([cancelled, other])
    assert seeds_of(ended(engine_thread, other)) == [2]
    with pytest.raises(Cancelled):
        ended(engine_thread, cancelled)
    assert engine.num_steps(1) == 0


def test_a_job_has_ended_before_observers_receive_its_last_step(engine_thread, hosted, notes):
    seen: list[int] = []
    run = submit(engine_thread, "job", [request(1)], hosted, on_end=lambda: seen.append(len(notes.ended)))
    ended(engine_thread, run)
    await_true(lambda: len(notes.steps) == 2)
    assert (seen, notes.ended) == ([0], [("model-a", 1, None)])


def test_engines_step_in_turn_however_long_the_queue_of_one_is(engine_thread, engine, hosted):
    other = FakeEngine("b", engine.log)
    hosted_other = added(engine_thread, ModelEngine("model-b", other))
    engine.gate.clear()
    busy = [submit(engine_thread, str(seed), [request(seed, paths=MAX_SLOTS)], hosted) for seed in range(20)]
    assert engine.in_step.wait(WAIT_S)
    late = submit(engine_thread, "late", [request(100, horizon=10)], hosted_other)
    engine.gate.set()
    assert seeds_of(ended(engine_thread, late)) == [100]
    for run in busy:
        ended(engine_thread, run)
    assert "".join(engine.log) == "a" + "ab" * 10 + "a" * 29


def test_idle_engines_prepare_on_their_thread_until_they_are_ready(engine_thread):
    engines = [FakeEngine("a"), FakeEngine("b")]
    for engine in engines:
        engine.num_to_prepare = 3
        added(engine_thread, ModelEngine(engine.name, engine))
    engine_thread.wait_until_prepared()
    names = {thread.name for engine in engines for thread in engine.prepared_by}
    assert ([len(engine.prepared_by) for engine in engines], names) == ([3, 3], {"kronos-engine"})


def test_a_job_waits_for_one_piece_of_preparation_at_most(engine_thread, engine):
    other, engine.num_to_prepare = FakeEngine("b"), 3
    hosted_other = added(engine_thread, ModelEngine("model-b", other))
    engine.gate.clear()
    added(engine_thread, ModelEngine("model-a", engine))
    assert engine.in_step.wait(WAIT_S)
    run = submit(engine_thread, "job", [request(1, horizon=LONG)], hosted_other)
    num_prepared, step = [], other.step
    other.step = lambda: (num_prepared.append(len(engine.prepared_by)), step())[1]
    engine.gate.set()
    engine_thread.wait_until_prepared()
    ended(engine_thread, run)
    assert num_prepared == [1] * LONG
    await_true(lambda: len(engine.prepared_by) == 3)


def test_the_load_of_all_engines_can_be_read(engine_thread, engine, hosted):
    added(engine_thread, ModelEngine("model-b", FakeEngine("b")))
    engine.gate.clear()
    run = submit(engine_thread, "job", [request(1, paths=MAX_SLOTS - 1), request(2, paths=3)], hosted)
    assert engine.in_step.wait(WAIT_S)
    assert hosted.load == EngineLoad(MAX_SLOTS - 1, 3, MAX_SLOTS)
    assert load_of(engine_thread) == EngineLoad(MAX_SLOTS - 1, 3, 2 * MAX_SLOTS)
    engine.gate.set()
    ended(engine_thread, run)
    assert load_of(engine_thread) == EngineLoad(0, 0, 2 * MAX_SLOTS)


def test_an_engine_that_is_removed_is_not_kept_by_anything(engine_thread, engine, hosted):
    other = FakeEngine("b")
    hosted_other = added(engine_thread, ModelEngine("model-b", other))
    run = submit(engine_thread, "job", [request(1)], hosted_other)
    ended(engine_thread, run)
    gone = weakref.ref(other)
    del other
    engine_thread.remove(hosted_other)
    gc.collect()
    assert gone() is None
    assert load_of(engine_thread) == IDLE
    assert hosted_other.load == EngineLoad(0, 0, 0)
    with pytest.raises(EngineDied):
        ended(engine_thread, submit(engine_thread, "too late", [request(2)], hosted_other))
    assert seeds_of(ended(engine_thread, submit(engine_thread, "next", [request(3)], hosted))) == [3]


def test_removing_an_engine_gives_its_jobs_back(engine_thread, engine, hosted, deaths):
    engine.gate.clear()
    run = submit(engine_thread, "job", [request(1, horizon=LONG)], hosted)
    assert engine.in_step.wait(WAIT_S)
    threading.Timer(0.02, engine.gate.set).start()
    engine_thread.remove(hosted)
    with pytest.raises(EngineDied):
        ended(engine_thread, run)
    assert engine_thread.is_alive
    assert deaths == []


def test_progress_counts_the_bars_of_all_paths_and_series(engine_thread, engine, hosted):
    engine.gate.clear()
    run = submit(engine_thread, "job", [request(1, horizon=3, paths=2), request(2, horizon=3)], hosted)
    assert run.num_bars_done == 0
    assert not engine_thread.has_ended(run)
    engine.gate.set()
    ended(engine_thread, run)
    assert run.num_bars_done == run.num_bars_total == 9


def test_a_running_job_can_be_cancelled(engine_thread, engine, hosted):
    engine.gate.clear()
    run = submit(engine_thread, "job", [request(1, horizon=LONG), request(2, horizon=LONG)], hosted)
    assert engine.in_step.wait(WAIT_S)
    engine_thread.cancel(run)
    engine.gate.set()
    with pytest.raises(Cancelled):
        ended(engine_thread, run)
    await_true(lambda: load_of(engine_thread) == IDLE)
    assert engine.num_steps(1) < LONG


def test_a_waiting_job_can_be_cancelled_without_ever_running(engine_thread, engine, hosted):
    engine.gate.clear()
    running = submit(engine_thread, "running", [request(1, paths=MAX_SLOTS)], hosted)
    waiting = submit(engine_thread, "waiting", [request(2)], hosted)
    assert engine.in_step.wait(WAIT_S)
    engine_thread.cancel(waiting)
    engine.gate.set()
    with pytest.raises(Cancelled):
        ended(engine_thread, waiting)
    assert seeds_of(ended(engine_thread, running)) == [1]
    assert engine.num_steps(2) == 0


def test_one_failing_series_fails_its_job_and_frees_the_slots_of_its_others(engine_thread, engine, hosted):
    engine.poisoned = {2}
    engine.gate.clear()
    bad = submit(engine_thread, "bad", [request(seed, horizon=LONG) for seed in (1, 2, 3)], hosted)
    good = submit(engine_thread, "good", [request(9, horizon=LONG)], hosted)
    engine.gate.set()
    with pytest.raises(KronosError, match="a kernel failed"):
        ended(engine_thread, bad)
    assert bad.failed_series == 1
    assert seeds_of(ended(engine_thread, good)) == [9]
    assert engine.num_steps(9) == LONG
    assert max(engine.num_steps(1), engine.num_steps(3)) < LONG
    assert load_of(engine_thread) == IDLE


def test_a_series_that_the_engine_refuses_ends_its_job_and_frees_its_others(engine_thread, engine, hosted):
    requests = [request(1, horizon=LONG), request(2, horizon=MAX_CONTEXT + 1)]
    run = submit(engine_thread, "job", requests, hosted)
    with pytest.raises(InputError, match="max_context 64"):
        ended(engine_thread, run)
    assert run.failed_series == 1
    await_true(lambda: load_of(engine_thread) == IDLE)
    assert engine.num_steps(1) < LONG


def test_an_engine_that_dies_ends_the_jobs_of_all_engines_and_says_so_before(
    engine_thread, engine, hosted, deaths
):
    hosted_other = added(engine_thread, ModelEngine("model-b", FakeEngine("b")))
    engine.gate.clear()
    running = submit(engine_thread, "running", [request(1, paths=MAX_SLOTS)], hosted)
    assert engine.in_step.wait(WAIT_S)
    waiting = submit(engine_thread, "waiting", [request(2), request(3)], hosted)
    healthy = submit(engine_thread, "healthy", [request(4, horizon=LONG)], hosted_other)
    engine.defect = RuntimeError("not in any series")
    engine.gate.set()
    for run in (running, waiting, healthy):
        with pytest.raises(EngineDied):
            ended(engine_thread, run)
        assert deaths == ["died"]
    await_true(lambda: not engine_thread.is_alive)
    with pytest.raises(EngineDied):
        ended(engine_thread, submit(engine_thread, "too late", [request(4)], hosted))
    engine_thread.remove(hosted)  # returns although nobody does it


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_jobs_end_even_if_the_process_cannot_be_ended():
    def fail() -> None:
        raise PermissionError("no signal for you")

    engine_thread, engine = EngineThread(on_death=fail), FakeEngine()
    engine.defect = RuntimeError("not in any series")
    engine_thread.start()
    run = submit(engine_thread, "job", [request(1)], added(engine_thread, ModelEngine("model", engine)))
    with pytest.raises(EngineDied):
        ended(engine_thread, run)
    engine_thread.stop()


def test_stopping_finishes_what_the_service_holds_and_takes_no_more(engine_thread, engine, hosted):
    engine.gate.clear()
    runs = [submit(engine_thread, str(seed), [request(seed, paths=MAX_SLOTS)], hosted) for seed in range(5)]
    assert engine.in_step.wait(WAIT_S)
    threading.Timer(0.02, engine.gate.set).start()
    engine_thread.stop(WAIT_S)
    assert [seeds_of(result_of(run)) for run in runs] == [[seed] for seed in range(5)]
    with pytest.raises(EngineDied):
        ended(engine_thread, submit(engine_thread, "too late", [request(9)], hosted))


def test_observers_receive_every_step_and_each_ended_series_once(engine_thread, engine, hosted, notes):
    engine.poisoned = {2}
    engine.gate.clear()
    runs = [submit(engine_thread, str(seed), [request(seed, paths=2)], hosted) for seed in (1, 2)]
    cancelled = submit(
        engine_thread, "cancelled", [request(3, horizon=LONG), request(4, horizon=LONG)], hosted
    )
    assert engine.in_step.wait(WAIT_S)
    engine_thread.cancel(cancelled)
    engine.gate.set()
    assert seeds_of(ended(engine_thread, runs[0])) == [1]
    for run in (runs[1], cancelled):
        with pytest.raises(KronosError):
            ended(engine_thread, run)
    engine_thread.stop()
    assert len(notes.steps) == len(engine.steps)
    assert notes.steps[0][:2] == ("model-a", sum(2 if seed < 3 else 1 for seed in engine.steps[0]))
    assert notes.steps[-1][2] == IDLE
    assert sorted(notes.ended) == [
        ("model-a", 1, None),
        ("model-a", 2, "INTERNAL"),
        ("model-a", 3, "CANCELLED"),
        ("model-a", 4, "CANCELLED"),
    ]


def test_a_job_is_admitted_once_the_load_counts_it(engine):
    seen: list[tuple[str, int, int]] = []

    def admitted(job_id: str) -> None:
        load = load_of(engine_thread)
        seen.append((job_id, load.running + load.waiting, len(engine_thread.runs)))

    engine_thread = EngineThread(on_admission=admitted)
    engine_thread.start()
    hosted = added(engine_thread, ModelEngine("model-a", engine))
    engine.gate.clear()
    run = submit(engine_thread, "job", [request(1, paths=2), request(2)], hosted)
    assert engine.in_step.wait(WAIT_S)
    assert seen == [("job", 3, 1)]
    assert engine_thread.loads == {"model-a": load_of(engine_thread)}
    engine.gate.set()
    assert seeds_of(ended(engine_thread, run)) == [1, 2]
    engine_thread.stop(WAIT_S)
    assert (engine_thread.runs, engine_thread.loads) == ([], {"model-a": IDLE})


def test_an_observer_that_fails_is_removed_and_the_others_go_on(notes, caplog):
    class Broken:
        num_calls = 0

        def observe_step(self, *_: object) -> None:
            self.num_calls += 1
            raise ZeroDivisionError

    broken = Broken()
    engine_thread, engine = EngineThread([broken, notes]), FakeEngine()
    engine_thread.start()
    hosted = added(engine_thread, ModelEngine("model", engine))
    run = submit(engine_thread, "job", [request(1, horizon=3)], hosted)
    assert seeds_of(ended(engine_thread, run)) == [1]
    engine_thread.stop()
    assert (broken.num_calls, len(notes.steps)) == (1, 3)
    assert caplog.text.count("Broken failed") == 1


def test_only_the_first_end_of_a_job_counts():
    run = JobRun("job", [request(1)], ModelEngine("model", FakeEngine()))
    run.end(Cancelled("first"), 0)
    run.end()
    with pytest.raises(Cancelled, match="first"):
        result_of(run)
