"""Which processes are restarted."""

import pytest

from kronos_cli.stack.restarts import MAX_RESTARTS, WINDOW_S, Restarts
from worker.inference.shutdown import EXIT_STATUS

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
    restarts.note_line("worker", "ready: device=cpu")
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
