"""Which processes are started again, which get a signal, and the exit status of several workers."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronos_cli.stack.restarts import MAX_RESTARTS, SIGNALS, WINDOW_S, Restarts, WorkerProcesses
from kronos_model.processes.children import ChildProcess, LocalStackError
from tests.waiting import await_true
from worker.inference.forced_shutdown import EXIT_STATUS

KILLED, REFUSED, STOPPED = -9, 1, 0


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("exit_status", "was_ready", "expected"),
    [
        (KILLED, False, True),
        (KILLED, True, True),
        (EXIT_STATUS, False, True),
        (EXIT_STATUS, True, True),
        (REFUSED, False, False),
        (REFUSED, True, True),
        (STOPPED, False, False),
        (STOPPED, True, False),
    ],
)
def test_a_crashed_process_is_restarted_and_one_that_cannot_start_is_not(exit_status, was_ready, expected):
    restarts = Restarts()
    if was_ready:
        restarts.note_line("worker", "[2026-01-01] ready: device=cpu")
        restarts.note_line("redis", "* Ready to accept connections tcp")
        restarts.note_line("api", "INFO: Uvicorn running on http://127.0.0.1:8000")
        restarts.note_line("flower", "Visit me at http://127.0.0.1:5555")
    restarts.note_line("other", "ready: device=cpu")
    allowed = {name: restarts.allow(name, exit_status) for name in ("worker", "redis", "api", "flower")}
    assert allowed == dict.fromkeys(allowed, expected)


def test_a_restarted_process_must_become_ready_again():
    restarts = Restarts()
    assert not restarts.are_ready(["worker"])
    restarts.note_line("worker", "ready: device=cpu")
    assert restarts.are_ready(["worker"])
    assert not restarts.are_ready(["worker", "api"])
    assert restarts.allow("worker", KILLED)
    assert not restarts.allow("worker", REFUSED)


def test_each_process_has_its_own_number_of_restarts_per_window():
    clock = Clock()
    restarts = Restarts(clock)
    assert [restarts.allow("worker-1", KILLED) for _ in range(MAX_RESTARTS + 1)] == [True] * 5 + [False]
    assert restarts.allow("worker-2", KILLED)
    clock.now_s += WINDOW_S - 1
    assert not restarts.allow("worker-1", KILLED)
    clock.now_s += 1
    assert [restarts.allow("worker-1", KILLED) for _ in range(MAX_RESTARTS + 1)] == [True] * 5 + [False]


def test_a_refused_restart_is_not_counted():
    restarts = Restarts(Clock())
    for _ in range(20):
        restarts.allow("worker", REFUSED)
    assert restarts.allow("worker", KILLED)


CRASHES = [EXIT_STATUS, -9]


@given(st.lists(st.lists(st.sampled_from([*CRASHES, *CRASHES, 0, 1]), max_size=8), min_size=1, max_size=4))
def test_what_crashes_is_started_again_and_the_worst_last_status_counts(lives: list[list[int]]):
    """Each process ends at once, with these statuses one after the other, then with 0."""
    num_starts = [0] * len(lives)
    statuses = [chain(life, repeat(0)) for life in lives]

    def start(index: int) -> Any:
        num_starts[index] += 1
        status = next(statuses[index])
        return SimpleNamespace(name=f"worker-{index}", exit_status=status, stop=lambda: status)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kronos_cli.stack.restarts.POLL_S", 0)
        starts = [partial(start, index) for index in range(len(lives))]
        worst = WorkerProcesses(starts, Restarts(), pause_s=0).run()
    last = []
    for index, life in enumerate(lives):
        num_crashes = next((n for n, status in enumerate(life) if status not in CRASHES), len(life))
        assert num_starts[index] == min(num_crashes, MAX_RESTARTS) + 1
        status = [*life, 0][num_starts[index] - 1]
        last.append(status if status >= 0 else 128 - status)
    assert worst == max(last)


def python(script: str, *arguments: str) -> Callable[[], ChildProcess]:
    return lambda: ChildProcess("worker", [sys.executable, "-c", script, *arguments])


def run_until(condition: Callable[[], object], number: int, workers: WorkerProcesses) -> int:
    """Run them, and send this process the signal once the condition holds."""

    def send() -> None:
        await_true(condition, "the processes are ready")
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        return workers.run()
    finally:
        thread.join()


HANDLES = """
import pathlib, signal, sys, time
def end(number, _):
    pathlib.Path(sys.argv[1], f"got-{number}-{sys.argv[2]}").touch()
    sys.exit(int(sys.argv[2]))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, end)
pathlib.Path(sys.argv[1], "ready-" + sys.argv[2]).touch()
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_all_get_a_signal_and_none_is_started_again(tmp_path: Path, number: int):
    starts = [python(HANDLES, str(tmp_path), str(status)) for status in (0, EXIT_STATUS)]
    workers = WorkerProcesses(starts, Restarts(), pause_s=0)
    before = signal.signal(number, own := lambda *_: None)  # it may be ignored, as under nohup
    try:
        status = run_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, number, workers)
        assert signal.getsignal(number) is own
    finally:
        signal.signal(number, before)
    assert status == EXIT_STATUS
    assert len(list(tmp_path.glob(f"got-{number:d}-*"))) == 2


def test_a_signal_that_a_process_cannot_handle_yet_is_no_error(tmp_path: Path):
    script = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
    workers = WorkerProcesses([python(script, str(tmp_path / "up"))], Restarts())
    assert run_until((tmp_path / "up").exists, signal.SIGTERM, workers) == 0


def test_a_signal_ends_the_wait_for_a_restart(tmp_path: Path):
    script = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).touch(); os.kill(os.getpid(), 9)"
    ended: list[str] = []
    restarts = Restarts()
    allow = restarts.allow
    restarts.allow = lambda name, status: ended.append(name) or allow(name, status)  # type: ignore[method-assign,func-returns-value]
    workers = WorkerProcesses([python(script, str(tmp_path / "up"))], restarts, pause_s=3600)
    assert run_until(lambda: ended, signal.SIGTERM, workers) == 128 + 9


def test_if_one_cannot_be_started_the_others_end():
    first = python("import time; time.sleep(60)")()

    def refuse() -> ChildProcess:
        raise LocalStackError("no memory")

    with pytest.raises(LocalStackError):
        WorkerProcesses([lambda: first, refuse], Restarts()).run()
    assert first.exit_status == -signal.SIGTERM
