"""Refused outcomes: one line a minute that says what to do, and a problem that the worker announces."""

import logging

import pytest
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from worker.broker import outcomes
from worker.broker.outcomes import OTHERWISE, StoreHealth


@pytest.fixture
def clock(monkeypatch):
    """Its ``now`` may be set."""

    class Clock:
        now = 1000.0

        def monotonic(self) -> float:
            return self.now

    monkeypatch.setattr(outcomes, "time", clock := Clock())
    return clock


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger=outcomes.__name__)
    return lambda: [record.getMessage() for record in caplog.records]


def test_one_line_a_minute_while_nothing_is_stored(clock, lines):
    health, began = StoreHealth(), clock.now
    for _ in range(1300):  # two minutes and more
        health.refused(ResponseError("BUSY Redis is busy running a script"))
        assert (health.problem is None) == (clock.now < began + 3)  # as it is announced
        clock.now += 0.1
    assert len(lines()) == 3
    assert len(set(lines())) == 1
    health.accepted()
    assert lines()[3:] == ["Redis accepts outcomes again"]
    assert health.problem is None


def test_a_moment_without_storing_is_no_problem(clock, lines):
    health = StoreHealth()
    for _ in range(10):
        health.refused(ResponseError("LOADING"))
        clock.now += 2
        assert health.problem is None
        health.accepted()
    assert lines() == []


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "make room in Redis"),
        (ResponseError("Error running script: -OOM command not allowed"), "make room in Redis"),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots"), "disk"),
        (NoPermissionError("this user has no permissions"), "deploy/redis-users.acl"),
        (AuthenticationError("invalid username-password pair"), "KRONOS_REDIS_URL"),
        (ReadOnlyError("You can't write against a read only replica."), "primary"),
        (ResponseError("BUSY Redis is busy running a script"), "SCRIPT KILL"),
        (ResponseError("upstream failure"), OTHERWISE),
    ],
)
def test_the_problem_names_the_answer_and_what_to_do(clock, error, remedy):
    health = StoreHealth()
    health.refused(error)
    clock.now += 10
    assert str(error) in health.problem
    assert remedy in health.problem


def test_an_answer_of_several_lines_is_one_line(clock):
    health = StoreHealth()
    health.refused(ResponseError("bad\r\n\x1b[31mgateway"))
    clock.now += 10
    assert health.problem.isprintable()
