"""Outcomes that are stored many at once, and kept while Redis refuses them, on a scripted store and clock."""

import logging
import random
import threading
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from kronos_client.redis.connection import OTHERWISE, unreachable
from kronos_client.redis.job_store import Ending, NotStored
from worker.broker import outcomes as module
from worker.broker.outcomes import (
    MAX_AT_ONCE,
    MAX_BYTES_AT_ONCE,
    MAX_PAUSE_S,
    MAX_TRIES,
    Outcomes,
    StoreHealth,
)

BIG = bytes(MAX_BYTES_AT_ONCE + 1)
REFUSED = NotStored("refused")


class ScriptedStore:
    """A fake ``JobStore``: refuses each job this often, and raises while it is away."""

    def __init__(self) -> None:
        self.calls: list[list[Ending]] = []
        self.refusals: Counter[str] = Counter()
        self.is_away = False

    def end(self, endings):
        self.calls.append(list(endings))
        if self.is_away:
            raise ConnectionError("away")
        refused = [one.job_id if one.outcome else "dead" for one in endings]
        answers = [REFUSED if self.refusals[one] > 0 else "stored" for one in refused]
        self.refusals.subtract(refused)
        return answers


class Bench:
    """Outcomes, what became of each by job, and the clock."""

    def __init__(self) -> None:
        self.store = ScriptedStore()
        self.now = 100.0
        self.outcomes = Outcomes(self.store)
        self.repeated: list[str] = []
        self.outcomes.on_repeated = self.repeated.append
        self.done: dict[str, list[object]] = {}
        self.put_bytes: dict[str, int] = {}

    def put(self, job_id: str, outcome: bytes = b"{}") -> None:
        answers = self.done[job_id] = []
        self.put_bytes[job_id] = len(outcome)
        self.outcomes.put(Ending(job_id, outcome, f"tag-{job_id}"), answers.append)

    def flush(self) -> None:
        self.now += MAX_PAUSE_S + 0.01
        self.outcomes.flush()

    @property
    def num_open_bytes(self) -> int:
        return sum(self.put_bytes[job_id] for job_id, answers in self.done.items() if not answers)


@pytest.fixture
def make(monkeypatch):
    """Makes a bench with a clock of its own."""

    def make() -> Bench:
        bench = Bench()
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: bench.now))
        return bench

    return make


@given(st.lists(st.sampled_from([1, 50_000, 2**20, MAX_BYTES_AT_ONCE, len(BIG)]), max_size=150))
def test_a_call_has_as_many_outcomes_as_may_be_and_a_larger_one_goes_alone(make, sizes):
    bench = make()
    for number, size in enumerate(sizes):
        bench.put(str(number), BIG[:size] if size < len(BIG) else BIG)
    bench.flush()
    calls = [[len(one.outcome) for one in call] for call in bench.store.calls]
    assert [size for call in calls for size in call] == sizes
    for call in calls:
        assert len(call) == 1 or (len(call) <= MAX_AT_ONCE and sum(call) <= MAX_BYTES_AT_ONCE)
    for call, following in pairwise(calls):
        assert len(call) == MAX_AT_ONCE or sum(call) + following[0] > MAX_BYTES_AT_ONCE
    assert all(answers == ["stored"] for answers in bench.done.values())
    assert bench.outcomes.num_kept_bytes == 0


@given(st.lists(st.integers(0, MAX_TRIES), min_size=1, max_size=100))
def test_a_refused_outcome_of_a_call_does_not_hold_the_others_up(make, refusals):
    bench = make()
    for number, num_refusals in enumerate(refusals):
        bench.store.refusals[str(number)] = num_refusals
        bench.put(str(number), bytes(number + 1))
    for num_flushed in range(1, MAX_TRIES + 2):
        bench.flush()
        # While all of a call are refused, the next call waits for the next round.
        if num_flushed > len(refusals) // MAX_AT_ONCE:
            assert bench.outcomes.num_kept_bytes == bench.num_open_bytes
    for _ in range(len(refusals)):
        bench.flush()
    assert all(answers == ["stored"] for answers in bench.done.values())
    tries = Counter(one.job_id for call in bench.store.calls for one in call)
    assert tries == {str(number): 1 + num for number, num in enumerate(refusals)}
    assert bench.outcomes.num_kept_bytes == 0


def test_while_redis_is_away_it_is_asked_once_a_round_with_pauses(make):
    bench = make()
    bench.store.is_away = True
    for number in range(3 * MAX_AT_ONCE):
        bench.put(str(number))
    for _ in range(3):
        num_calls = len(bench.store.calls)
        bench.flush()
        assert len(bench.store.calls) == num_calls + 1
    assert bench.outcomes.num_kept_bytes == 2 * 3 * MAX_AT_ONCE
    bench.store.is_away = False
    bench.flush()
    assert all(answers == ["stored"] for answers in bench.done.values())
    assert bench.outcomes.num_kept_bytes == 0


def test_pauses_between_tries_grow_to_their_limit(make):
    bench = make()
    bench.store.is_away = True
    bench.put("a")
    times = []
    for _ in range(6000):
        bench.now += 0.01
        bench.outcomes.flush()
        if len(bench.store.calls) > len(times):
            times.append(bench.now)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert 0.1 <= pauses[0] <= 0.22
    assert all(MAX_PAUSE_S / 2 <= pause <= MAX_PAUSE_S + 0.02 for pause in pauses[5:])


def test_what_redis_refuses_alone_is_given_up_with_an_entry_in_the_dead_messages(make):
    bench = make()
    bench.outcomes.dead_entry = lambda tag, job_id, reason: f"{tag} {job_id}"
    bench.store.refusals.update({"a": 1000, "dead": 2})
    bench.put("a")
    while not bench.done["a"]:
        bench.put(f"b{bench.now}")
        bench.flush()
    assert bench.done["a"] == [REFUSED]
    buried = [one for call in bench.store.calls for one in call if not one.outcome]
    assert buried == 3 * [Ending("", "", "tag-a", "tag-a a")]  # Redis refused that twice
    assert bench.outcomes.num_kept_bytes == 0


def test_what_is_refused_with_all_others_is_kept(make):
    bench = make()
    bench.store.refusals.update({"a": 1000, "b": 1000})
    bench.put("a")
    bench.put("b")
    for _ in range(3 * MAX_TRIES):
        bench.flush()
    assert not bench.done["a"]
    assert bench.outcomes.num_kept_bytes == 4


@given(st.booleans(), st.integers(0, 40), st.integers(1, 200))
def test_a_worker_that_shuts_down_keeps_outcomes_for_a_while_only(make, is_away, keep_s, num_jobs):
    bench = make()
    bench.store.is_away = is_away
    for number in range(num_jobs):
        bench.store.refusals[str(number)] = 1000
        bench.put(str(number))
    bench.outcomes.keep_for(keep_s)
    bench.outcomes.keep_for(keep_s + 1000)  # a second signal
    ends_at = bench.now + keep_s
    while not all(bench.done.values()):
        bench.flush()
        if bench.now <= ends_at:
            assert not any(bench.done.values())
        assert bench.now <= ends_at + (num_jobs + 1) * (MAX_PAUSE_S + 0.01)
    assert sorted(bench.repeated) == sorted(f"tag-{number}" for number in range(num_jobs))
    assert all(len(answers) == 1 for answers in bench.done.values())
    assert bench.outcomes.num_kept_bytes == 0


@pytest.mark.parametrize("answer", ["ended", "repeated", "held", "open"])
def test_only_what_is_stored_is_reported(make, answer):
    bench, reports = make(), []
    bench.outcomes.on_end = lambda *report: reports.append(report)
    bench.store.end = lambda endings: [answer if one.job_id == "a" else "stored" for one in endings]
    for job_id in "ab":
        done = bench.done[job_id] = []
        bench.outcomes.put(Ending(job_id, b"{}", job_id), done.append, task="t", outcome=job_id)
    bench.flush()
    assert bench.done == {"a": [answer], "b": ["stored"]}
    assert reports == [("t", "b", "b")]


def test_a_defect_in_what_follows_one_outcome_does_not_reach_the_others(make):
    bench = make()
    bench.outcomes.put(Ending("defect", b"{}", "x"), lambda answer: 1 / 0)
    bench.put("a")
    bench.flush()
    assert bench.done["a"] == ["stored"]


@settings(max_examples=20)
@given(st.integers(2, 4), st.integers(1, 300), st.integers(0, 2**32))
def test_threads_that_flush_at_once_store_each_outcome_once(num_threads, num_jobs, seed):
    bench, generator = Bench(), random.Random(seed)
    bench.store.refusals.update({str(number): generator.choice([0, 0, 1]) for number in range(num_jobs)})
    expected = {str(number): 1 + bench.store.refusals[str(number)] for number in range(num_jobs)}
    lock, end = threading.Lock(), bench.store.end

    def end_alone(endings):
        with lock:  # as a script
            return end(endings)

    bench.store.end = end_alone
    numbers = iter(range(num_jobs))

    def put_and_flush() -> None:
        for number in numbers:
            bench.put(str(number))
            if generator.random() < 0.1:
                bench.outcomes.flush()
        while not all(bench.done.values()) or len(bench.done) < num_jobs:
            bench.outcomes.flush()

    threads = [threading.Thread(target=put_and_flush) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(one.job_id for call in bench.store.calls for one in call) == expected
    assert all(answers == ["stored"] for answers in bench.done.values())
    assert bench.outcomes.num_kept_bytes == 0


@pytest.fixture
def clock(monkeypatch):
    """Its ``now`` may be set."""

    class Clock:
        now = 1000.0

        def monotonic(self) -> float:
            return self.now

    monkeypatch.setattr(module, "time", clock := Clock())
    return clock


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger=module.__name__)
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
    told = health.problem.partition("); ")[2]
    if not isinstance(error, AuthenticationError):  # which clients name by the form of the URL
        assert unreachable(error).message.endswith(f"({type(error).__name__}: {error}): {told}")


def test_an_answer_of_several_lines_is_one_line(clock):
    health = StoreHealth()
    health.refused(ResponseError("bad\r\n\x1b[31mgateway"))
    clock.now += 10
    assert health.problem.isprintable()
