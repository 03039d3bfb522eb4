"""What is started again, and what is not."""

import pytest

from kronos_cli.stack.restarts import MAX_RESTARTS, WINDOW_S, Restarts
from worker.inference.shutdown import EXIT_STATUS

KILLED, REFUSED, TOLD = -9, 1, 0


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
        (TOLD, False, False),
        (TOLD, True, False),
    ],
)
def test_what_crashed_is_started_again_and_what_refuses_is_not(exit_status, was_ready, expected):
    restarts = Restarts()
    if was_ready:
        restarts.note_line("worker", "[2026-01-01] ready: device=cpu")
    restarts.note_line("other", "ready: device=cpu")
    assert restarts.allow("worker", exit_status) == expected


def test_whoever_was_ready_must_become_so_again():
    restarts = Restarts()
    restarts.note_line("worker", "ready: device=cpu")
    assert restarts.allow("worker", KILLED)
    assert not restarts.allow("worker", REFUSED)


def test_each_has_a_budget_of_its_own_that_comes_back():
    clock = Clock()
    restarts = Restarts(clock)
    assert [restarts.allow("worker-1", KILLED) for _ in range(MAX_RESTARTS + 1)] == [True] * 5 + [False]
    assert restarts.allow("worker-2", KILLED)
    clock.now_s += WINDOW_S - 1
    assert not restarts.allow("worker-1", KILLED)
    clock.now_s += 1
    assert [restarts.allow("worker-1", KILLED) for _ in range(MAX_RESTARTS + 1)] == [True] * 5 + [False]


def test_what_refuses_spends_nothing():
    restarts = Restarts(Clock())
    for _ in range(20):
        restarts.allow("worker", REFUSED)
    assert restarts.allow("worker", KILLED)
