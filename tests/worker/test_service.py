"""The engine's owner: jobs from many threads, and how each of them ends. The runner computes nothing."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.support.workload import series_request
from kronos_model.engine.engine import Engine
from kronos_model.engine.sequence import Generation, SamplingParams, SeriesRequest
from kronos_model.engine.sequence import Sequence as EngineSequence
from kronos_model.errors import Cancelled, DeadlineExceeded, InputError, KronosError
from worker.service import EngineDied, ForecastService, JobRun, deadline_from

WAIT_S = 10
MAX_SLOTS = 8
LONG = 60


class GatedRunner:
    """Gives every path its seed as its bars. Steps wait while the gate is closed."""

    max_context = 64

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.in_step = threading.Event()
        self.poisoned: set[int] = set()  # seeds whose steps fail
        self.steps: list[list[int]] = []

    def run(self, sequences: Sequence[EngineSequence]) -> None:
        seeds = [sequence.request.sampling.seed for sequence in sequences]
        self.in_step.set()
        assert self.gate.wait(WAIT_S)
        if self.poisoned & set(seeds):
            raise RuntimeError("a kernel failed")
        self.steps.append(seeds)

    def num_steps(self, seed: int) -> int:
        return sum(seed in seeds for seeds in self.steps)

    def detokenize(self, sequence: EngineSequence) -> np.ndarray:
        shape = (sequence.num_paths, sequence.request.horizon, 6)
        return np.full(shape, sequence.request.sampling.seed, dtype=np.float32)

    def release(self, sequence: EngineSequence) -> None:
        pass


def request(seed: int, *, horizon: int = 2, paths: int = 1) -> SeriesRequest:
    return series_request(0, 8, horizon, SamplingParams(sample_count=paths, seed=seed))


def ended(service: ForecastService, run: JobRun) -> list[Generation]:
    """As a task waits: by and by, until the job has ended."""
    for _ in range(10 * WAIT_S):
        if service.wait(run, 0.1):
            return run.result()
    pytest.fail("the job has no end")


def seeds_of(generations: list[Generation]) -> list[int]:
    return [int(np.unique(generation.paths).item()) for generation in generations]


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


@pytest.fixture
def runner() -> GatedRunner:
    return GatedRunner()


@pytest.fixture
def engine(runner: GatedRunner) -> Engine:
    return Engine(runner, max_slots=MAX_SLOTS)


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The signals that would have been sent."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("worker.service.os.kill", lambda pid, number: sent.append((pid, number)))
    return sent


@pytest.fixture
def service(runner: GatedRunner, engine: Engine, kills: list[tuple[int, int]]) -> Iterator[ForecastService]:
    """Asks for the kills, so that an engine that dies fails its test instead of ending them all."""
    service = ForecastService(engine)
    service.start()
    yield service
    runner.gate.set()
    service.stop()
    assert not service.is_alive


def test_each_of_many_threads_gets_its_own_result(service, runner):
    def submit_and_wait(first_seed: int) -> list[int]:
        run = service.submit(f"job-{first_seed}", [request(first_seed + index) for index in range(3)])
        return seeds_of(ended(service, run))

    first_seeds = range(0, 320, 10)
    with ThreadPoolExecutor(32) as threads:
        results = list(threads.map(submit_and_wait, first_seeds))
    assert results == [[seed, seed + 1, seed + 2] for seed in first_seeds]
    assert max(map(len, runner.steps)) <= MAX_SLOTS
    assert service.slots == (0, MAX_SLOTS)


def test_jobs_of_different_threads_share_a_step(service, runner):
    runner.gate.clear()
    first = service.submit("first", [request(1)])
    assert runner.in_step.wait(WAIT_S)
    others = [service.submit(str(seed), [request(seed)]) for seed in (2, 3)]
    runner.gate.set()
    for run in (first, *others):
        ended(service, run)
    assert runner.steps == [[1], [2, 3, 1], [2, 3]]


def test_progress_counts_the_bars_of_all_paths_and_series(service, runner):
    runner.gate.clear()
    run = service.submit("job", [request(1, horizon=3, paths=2), request(2, horizon=3)])
    assert run.num_bars_done == 0
    assert not service.wait(run, 0.01)
    runner.gate.set()
    ended(service, run)
    assert run.num_bars_done == run.num_bars_total == 9


def test_a_running_job_can_be_cancelled(service, runner):
    runner.gate.clear()
    run = service.submit("job", [request(1, horizon=LONG), request(2, horizon=LONG)])
    assert runner.in_step.wait(WAIT_S)
    service.cancel(run)
    runner.gate.set()
    with pytest.raises(Cancelled):
        ended(service, run)
    assert eventually(lambda: service.slots == (0, MAX_SLOTS))
    assert runner.num_steps(1) < LONG


def test_a_waiting_job_can_be_cancelled_without_ever_running(service, runner):
    runner.gate.clear()
    running = service.submit("running", [request(1, paths=MAX_SLOTS)])
    waiting = service.submit("waiting", [request(2)])
    assert runner.in_step.wait(WAIT_S)
    service.cancel(waiting)
    runner.gate.set()
    with pytest.raises(Cancelled):
        ended(service, waiting)
    assert seeds_of(ended(service, running)) == [1]
    assert runner.num_steps(2) == 0


def test_cancelling_a_job_that_is_done_changes_nothing(service):
    run = service.submit("job", [request(1)])
    ended(service, run)
    service.cancel(run)
    ended(service, service.submit("next", [request(2)]))
    assert seeds_of(run.result()) == [1]


def test_one_failing_series_fails_its_job_and_frees_the_slots_of_its_others(service, runner):
    runner.poisoned = {2}
    runner.gate.clear()
    bad = service.submit("bad", [request(seed, horizon=LONG) for seed in (1, 2, 3)])
    good = service.submit("good", [request(9, horizon=LONG)])
    runner.gate.set()
    with pytest.raises(KronosError, match="RuntimeError"):
        ended(service, bad)
    assert bad.failed_series == 1
    assert seeds_of(ended(service, good)) == [9]
    assert runner.num_steps(9) == LONG
    assert max(runner.num_steps(1), runner.num_steps(3)) < LONG
    assert service.slots == (0, MAX_SLOTS)


def test_a_series_that_the_engine_refuses_ends_its_job_and_frees_its_others(service, runner):
    run = service.submit("job", [request(1, horizon=LONG), request(2, horizon=runner.max_context + 1)])
    with pytest.raises(InputError, match="max_context 64"):
        ended(service, run)
    assert run.failed_series == 1
    assert eventually(lambda: service.slots == (0, MAX_SLOTS))
    assert runner.num_steps(1) < LONG


def test_a_late_job_of_several_series_ends_alone(service, runner):
    runner.gate.clear()
    deadline = deadline_from(0.02)
    late = service.submit("late", [replace(request(s, horizon=LONG), deadline=deadline) for s in (1, 2, 3)])
    good = service.submit("good", [request(9, horizon=LONG)])
    assert runner.in_step.wait(WAIT_S)
    time.sleep(0.03)
    runner.gate.set()
    with pytest.raises(DeadlineExceeded):
        ended(service, late)
    assert seeds_of(ended(service, good)) == [9]
    assert service.is_alive


def test_a_job_of_very_many_series_can_be_cancelled(service):
    run = service.submit("job", [request(seed) for seed in range(400)])
    service.cancel(run)
    with pytest.raises(Cancelled):
        ended(service, run)
    assert seeds_of(ended(service, service.submit("next", [request(1)]))) == [1]


def test_an_engine_that_dies_ends_every_job_and_asks_the_process_to_stop(service, engine, runner, kills):
    def step() -> None:
        raise RuntimeError("not in any sequence")

    runner.gate.clear()
    running = service.submit("running", [request(1, paths=MAX_SLOTS)])
    assert runner.in_step.wait(WAIT_S)
    waiting = service.submit("waiting", [request(2), request(3)])
    engine.step = step
    runner.gate.set()
    for run in (running, waiting):
        with pytest.raises(EngineDied):
            ended(service, run)
    assert kills == [(os.getpid(), signal.SIGTERM)]
    assert not service.is_alive
    with pytest.raises(EngineDied):
        ended(service, service.submit("too late", [request(4)]))


def test_stopping_finishes_what_the_service_holds_and_takes_no_more(service, runner):
    runner.gate.clear()
    runs = [service.submit(str(seed), [request(seed, paths=MAX_SLOTS)]) for seed in range(5)]
    assert runner.in_step.wait(WAIT_S)
    threading.Timer(0.02, runner.gate.set).start()
    service.stop(WAIT_S)
    assert [seeds_of(run.result()) for run in runs] == [[seed] for seed in range(5)]
    with pytest.raises(EngineDied):
        ended(service, service.submit("too late", [request(9)]))


def test_a_job_that_fails_while_the_service_stops_keeps_its_own_error(service, runner):
    runner.poisoned = {1}
    runner.gate.clear()
    run = service.submit("bad", [request(1)])
    assert runner.in_step.wait(WAIT_S)
    threading.Timer(0.02, runner.gate.set).start()
    service.stop(WAIT_S)
    with pytest.raises(KronosError, match="RuntimeError"):
        run.result()


def test_outcomes_are_counted_from_any_thread(service):
    with ThreadPoolExecutor(8) as threads:
        for number in range(300):
            threads.submit(service.count, succeeded=number % 3 > 0)
    assert (service.counters.done, service.counters.failed) == (200, 100)


def test_only_the_first_end_of_a_job_counts():
    run = JobRun("job", [request(1)])
    run.end(Cancelled("first"), 0)
    run.end()
    with pytest.raises(Cancelled, match="first"):
        run.result()


def test_a_deadline_is_a_moment_on_the_engines_clock():
    assert deadline_from(None) is None
    assert deadline_from(5) == pytest.approx(time.monotonic() + 5, abs=1)
