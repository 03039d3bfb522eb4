"""A step that hangs is detected, a long one is not. The worst cases run in their own processes."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue

import pytest

from benchmarks.support.workload import series_request
from kronos_model.engine.generation import SeriesRequest
from tests.waiting import WAIT_S, await_true
from tests.worker.inference.fake_engine import FakeEngine, FakeGeneration, params
from tests.worker.inference.runs import added, ended, submit
from worker.inference import watchdog
from worker.inference.engine_thread import EngineThread, ModelEngine
from worker.inference.forced_shutdown import EXIT_STATUS
from worker.inference.watchdog import Watchdog

LIMIT_S = 0.2
LONG_S = 600

PRELUDE = """
import ctypes, logging, threading, time
from worker.inference import forced_shutdown as ending
from worker.inference.watchdog import Watchdog
"""
KEEPS_THE_LOCK = """
dog = Watchdog(1, on_hang=print)
dog.start()
with dog.step():
    while not dog._is_armed:
        time.sleep(0.01)
    ctypes.PyDLL(None).sleep(60)
"""
LOG_IS_STUCK = """
ending.LOG_FLUSH_S = 0.1
handler = logging.StreamHandler()
logging.getLogger().addHandler(handler)
def hang():
    handler.acquire()
    held.set()
    time.sleep(60)
held = threading.Event()
threading.Thread(target=hang).start()
held.wait()
ending.end_at_once("nobody will read this")
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + script], capture_output=True, text=True, timeout=WAIT_S, check=False
    )


class Frozen:
    """Stands in for faulthandler, which would end the tests' process if they got no processor for long."""

    def __init__(self) -> None:
        self.ends_process = False

    def dump_traceback_later(self, _timeout_s: float, *, exit: bool, file: object) -> None:
        self.ends_process = True

    def cancel_dump_traceback_later(self) -> None:
        self.ends_process = False


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> Frozen:
    frozen = Frozen()
    monkeypatch.setattr(watchdog, "faulthandler", frozen)
    return frozen


class Watched:
    """A watchdog and its reports."""

    def __init__(self, limit_s: float) -> None:
        self.hangs: SimpleQueue[float] = SimpleQueue()
        self.changes: SimpleQueue[bool] = SimpleQueue()
        self.dog = Watchdog(limit_s, self.hangs.put, lambda: self.changes.put(self.dog.is_stalled))
        self.dog.start()


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched(LIMIT_S)
    yield watched
    watched.dog.stop()


class Clock:
    """Seconds that the test adds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class ByHand:
    """A watchdog without its thread: each tick comes after as many seconds as the test says."""

    def __init__(self, limit_s: float) -> None:
        self.hangs: list[float] = []
        self.clock = Clock()
        self.changes: list[bool] = []
        self.dog = Watchdog(limit_s, self.hangs.append, self.note_change, clock=self.clock)

    def note_change(self) -> None:
        self.changes.append(self.dog.is_stalled)

    def tick(self, seconds: float = 1.0) -> bool:
        self.clock.now_s += seconds
        return self.dog.tick()


@pytest.fixture
def by_hand() -> ByHand:
    return ByHand(LONG_S)


def test_a_step_that_hangs_is_stalled_first_and_reported_once(watched):
    with watched.dog.step():
        assert watched.changes.get(timeout=WAIT_S)
        assert watched.hangs.get(timeout=WAIT_S) > LIMIT_S
        with pytest.raises(Empty):
            watched.hangs.get(timeout=3 * LIMIT_S)


def test_a_step_that_ends_after_all_is_no_longer_stalled(by_hand):
    with by_hand.dog.step():
        while not by_hand.dog.is_stalled:
            assert not by_hand.tick()
    by_hand.tick()
    assert (by_hand.changes, by_hand.hangs) == ([True, False], [])


def test_the_process_goes_on_if_on_hang_does_not_end_it(watched, frozen):
    with watched.dog.step():
        watched.hangs.get(timeout=WAIT_S)
        await_true(lambda: not frozen.ends_process)


def test_idle_is_not_hanging_and_many_steps_are_not_one(by_hand):
    for _ in range(20):
        with by_hand.dog.step():
            assert not any(by_hand.tick() for _ in range(LONG_S // 4))
    assert not any(by_hand.tick() for _ in range(2 * LONG_S))
    assert not by_hand.dog.is_stalled


@pytest.mark.parametrize(("is_first", "factor"), [(False, 1), (True, watchdog.FIRST_STEP_FACTOR)])
def test_the_first_step_may_take_longer(by_hand, is_first, factor):
    with by_hand.dog.step(is_first=is_first):
        assert not any(by_hand.tick() for _ in range(factor * LONG_S))
        assert by_hand.tick()
    assert by_hand.hangs == [factor * LONG_S + 1]


def test_time_in_which_the_process_was_stopped_does_not_count(by_hand):
    with by_hand.dog.step():
        for _ in range(10):
            by_hand.tick(seconds=10 * LONG_S)
        num_more = LONG_S - 10 * 2 * int(watchdog.MAX_TICK_S)
        assert not any(by_hand.tick() for _ in range(num_more))
        assert by_hand.tick()


def test_a_step_that_keeps_the_interpreters_lock_ends_the_process():
    ended = run(KEEPS_THE_LOCK)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert ended.stdout == ""


def test_a_blocked_log_does_not_keep_the_process_alive():
    ended = run(LOG_IS_STUCK)
    assert ended.returncode == EXIT_STATUS


class SlowToSubmit(FakeEngine):
    """Submitted series wait on the engines' thread until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()

    def submit(self, request: SeriesRequest) -> FakeGeneration:
        assert self.may_go_on.wait(WAIT_S)
        return super().submit(request)


def test_engine_steps_are_watched_and_their_jobs_are_known(by_hand):
    engine_thread, engine = EngineThread(watchdog=by_hand.dog), SlowToSubmit()
    engine.may_go_on.set()
    engine_thread.start()
    hosted = added(engine_thread, ModelEngine("model", engine))
    run = submit(engine_thread, "warm", [series_request(0, 8, 2, params(0))], hosted)
    ended(engine_thread, run)
    engine.gate.clear()
    engine.in_step.clear()
    engine.may_go_on.clear()
    for seed, job_id in enumerate(("b", "a")):
        submit(engine_thread, job_id, [series_request(0, 8, 2, params(seed))], hosted)
    engine.may_go_on.set()
    assert engine.in_step.wait(WAIT_S)
    assert not any(by_hand.tick() for _ in range(LONG_S))
    assert by_hand.tick()
    assert sorted(run.job_id for run in engine_thread.runs) == ["a", "b"]
    engine.gate.set()
    engine_thread.stop(WAIT_S)


def test_a_command_that_hangs_is_noticed():
    watched = Watched(LIMIT_S)
    engine_thread = EngineThread(watchdog=watched.dog)
    engine_thread.start()
    engine = SlowToSubmit()
    submit(
        engine_thread,
        "job",
        [series_request(0, 8, 2, params(0))],
        added(engine_thread, ModelEngine("model", engine)),
    )
    assert watched.hangs.get(timeout=WAIT_S) > LIMIT_S
    engine.may_go_on.set()
    engine_thread.stop(WAIT_S)
