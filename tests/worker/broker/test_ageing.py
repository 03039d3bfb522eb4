"""Which messages move up: the notes in Redis, compared with a model that has each message's age."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kronos_client.contract.names import CPU_QUEUE
from kronos_client.redis.queues import NO_PREFIX, PRIORITY_STEPS, TAKEN_KEY, list_key
from worker.broker import ageing
from worker.broker.ageing import MAX_MOVED, MAX_MOVED_BYTES, SWEEP, SWEPT_KEY, Ageing, AgeingSweep

LOW, NORMAL = list_key(CPU_QUEUE, 6), list_key(CPU_QUEUE, 3)
CLOCK_KEY = "clock"
MAX_WAIT_S = 600
ON_A_CLOCK_OF_OURS = SWEEP.replace("redis.call('TIME')", f"{{redis.call('GET', '{CLOCK_KEY}'), 0}}")


@pytest.fixture
def sweeper(redis, monkeypatch) -> Ageing:
    monkeypatch.setattr(ageing, "SWEEP", ON_A_CLOCK_OF_OURS)
    assert "TIME" not in ON_A_CLOCK_OF_OURS
    return Ageing(redis, MAX_WAIT_S)


class Lists:
    """The low list as clients and workers change it, on a clock that the test sets."""

    def __init__(self, redis: Any, sweeper: Ageing) -> None:
        self.redis = redis
        self.sweeper = sweeper
        self.now_s = 1_000_000
        self.num_enqueued = 0
        self.out: list[str] = []

    def push(self) -> str:
        name = str(self.num_enqueued)
        self.num_enqueued += 1
        self.redis.lpush(LOW, name)
        return name

    def take(self) -> None:
        name = self.redis.rpop(LOW)
        if name is not None:
            self.redis.hincrby(TAKEN_KEY, LOW, 1)
            self.out.append(name)

    def put_back(self, index: int) -> None:
        if self.out:
            self.redis.rpush(LOW, self.out.pop(index % len(self.out)))
            self.redis.hincrby(TAKEN_KEY, LOW, -1)

    def sweep(self) -> list[str]:
        """The messages that moved, in their new order."""
        self.redis.set(CLOCK_KEY, self.now_s)
        self.redis.delete(SWEPT_KEY)
        before = self.redis.llen(NORMAL)
        assert self.sweeper.sweep() == self.redis.llen(NORMAL) - before
        moved = self.redis.lrange(NORMAL, 0, -1)[::-1]
        self.redis.delete(NORMAL)
        return moved

    def waiting(self) -> list[str]:
        """In the order in which they are served."""
        return self.redis.lrange(LOW, 0, -1)[::-1]


@pytest.fixture
def lists(redis, sweeper) -> Lists:
    return Lists(redis, sweeper)


# A sweep comes so many seconds after what was before it.
STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(1, 4)),
    st.tuples(st.just("take"), st.integers(1, 4)),
    st.tuples(st.just("put back"), st.integers(0, 9)),
    st.tuples(st.just("sweep"), st.sampled_from([0, 6, 100, 299, 300, 599, 600, 601, 2000])),
)
MANY = hypothesis_settings(max_examples=150)


def run(redis: Any, sweeper: Ageing, steps: Any) -> Any:
    """Yields after each sweep: the lists, what waited, what moved, and what of it should have.

    That is what was enqueued before the last sweep that is at least the wait ago.
    """
    redis.flushall()
    lists = Lists(redis, sweeper)
    lists.sweep()
    swept = [(lists.now_s, 0)]
    for name, number in steps:
        if name == "sweep":
            lists.now_s += number
            num_old = max((num for at, num in swept if at <= lists.now_s - MAX_WAIT_S), default=0)
            waiting = lists.waiting()
            yield lists, waiting, lists.sweep(), [name for name in waiting if int(name) < num_old]
            swept.append((lists.now_s, lists.num_enqueued))
        elif name == "put back":
            lists.put_back(number)
        else:
            for _ in range(number):
                getattr(lists, name)()


@MANY
@given(steps=st.lists(STEPS, max_size=40))
def test_exactly_the_messages_that_waited_long_enough_move(redis, sweeper, steps):
    # Messages come back in reverse order: the last one taken first.
    steps = [(name, -1) if name == "put back" else (name, number) for name, number in steps]
    for lists, waiting, moved, old in run(redis, sweeper, steps):
        assert moved == old
        assert lists.waiting() == waiting[len(moved) :]


@MANY
@given(steps=st.lists(STEPS, max_size=40))
def test_for_any_order_of_return_only_old_enough_messages_move(redis, sweeper, steps):
    for lists, waiting, moved, old in run(redis, sweeper, steps):
        assert len(moved) <= len(old)
        assert lists.waiting() == waiting[len(moved) :]


def test_a_message_that_comes_back_is_as_old_as_it_was(lists):
    lists.sweep()
    first = lists.push()
    lists.take()
    lists.now_s += 500
    lists.sweep()
    second = lists.push()
    lists.put_back(0)
    lists.now_s += 100
    assert lists.sweep() == []  # 600 s old, but not at the last note of 600 s ago
    lists.now_s += 500
    assert lists.sweep() == [first]
    lists.now_s += 100
    assert lists.sweep() == [second]


def test_only_a_few_messages_move_at_a_time(lists):
    for _ in range(MAX_MOVED + 20):
        lists.push()
    lists.sweep()
    lists.now_s += MAX_WAIT_S
    assert len(lists.sweep()) == MAX_MOVED
    lists.now_s += 6
    assert len(lists.sweep()) == 20
    assert lists.waiting() == []


def test_only_a_few_large_messages_move_at_a_time(lists, redis):
    name = str(10**7).ljust(MAX_MOVED_BYTES // 3 + 1)
    for _ in range(10):
        redis.lpush(LOW, name)
    redis.lpush(list_key(CPU_QUEUE, 9), "x")
    lists.sweep()
    for num in (3, 3, 3):
        lists.now_s += MAX_WAIT_S
        assert len(lists.sweep()) == num
    assert redis.llen(list_key(CPU_QUEUE, 9)) == 1
    lists.now_s += MAX_WAIT_S
    assert len(lists.sweep()) == 2


def test_a_purge_moves_nothing_up_before_its_time(lists, redis):
    for _ in range(5):
        lists.push()
    lists.sweep()
    redis.delete(LOW)  # as `celery purge` does
    lists.push()
    lists.now_s += MAX_WAIT_S
    assert lists.sweep() == []
    lists.now_s += MAX_WAIT_S
    assert len(lists.sweep()) == 1


def test_a_clock_that_goes_back_delays_at_most_by_the_wait(lists, redis):
    lists.push()
    lists.now_s += 1_000_000
    lists.sweep()
    lists.now_s -= 1_000_000
    lists.sweep()
    lists.now_s += MAX_WAIT_S
    assert len(lists.sweep()) == 1


def test_notes_are_bounded_and_none_is_added_without_changes(lists, redis):
    notes = f"{SWEPT_KEY}:{LOW}"
    for _ in range(500):
        lists.push()
        lists.take()
        lists.now_s += 6
        lists.sweep()
    assert redis.llen(notes) == 1 + MAX_WAIT_S / 6
    for _ in range(200):
        lists.now_s += 6
        lists.sweep()
    assert redis.llen(notes) == 1


def test_every_list_below_normal_of_every_queue_moves_to_its_own_normal_list(lists, redis):
    low = [(queue, step) for queue in NO_PREFIX.all for step in PRIORITY_STEPS if step > 3]
    assert len(low) == 8
    for queue, step in low:
        redis.lpush(list_key(queue, step), f"{queue} {step}")
        redis.lpush(list_key(queue, 0), "high")
    redis.lpush(NORMAL, "before")
    redis.set(CLOCK_KEY, lists.now_s)
    assert lists.sweeper.sweep() == 0
    redis.delete(SWEPT_KEY)
    redis.set(CLOCK_KEY, lists.now_s + MAX_WAIT_S)
    assert lists.sweeper.sweep() == 8
    assert redis.lrange(NORMAL, 0, -1) == ["cpu 9", "cpu 6", "before"]
    assert redis.llen(CPU_QUEUE) == 2
    assert redis.hget(TAKEN_KEY, LOW) == "1"


def test_workers_sweep_in_turns(lists, redis):
    other = Ageing(redis, MAX_WAIT_S)
    lists.push()
    lists.sweep()
    lists.now_s += MAX_WAIT_S
    redis.set(CLOCK_KEY, lists.now_s)
    assert (other.sweep(), lists.sweeper.sweep()) == (0, 0)  # within the interval of the first
    redis.delete(SWEPT_KEY)
    assert (other.sweep(), lists.sweeper.sweep()) == (1, 0)
    assert 0 < redis.pttl(SWEPT_KEY) < 1000 * other.interval_s


class FakeTimer:
    """Celery's timer; the test makes it fire."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def call_repeatedly(self, seconds: float, function: Any) -> SimpleNamespace:
        self.seconds = seconds
        self.calls.append(function)
        return SimpleNamespace(cancel=lambda: self.calls.remove(function))


@pytest.fixture
def step(settings, monkeypatch) -> AgeingSweep:
    settings = settings.model_copy(update={"low_priority_max_wait_s": 60.0})
    monkeypatch.setattr(ageing, "get_settings", lambda: settings)
    return AgeingSweep(None)


def test_a_worker_sweeps_from_its_first_connection_on(step, redis):
    timer = FakeTimer()
    consumer = SimpleNamespace(timer=timer)
    step.stop(consumer)
    step.start(consumer)
    assert timer.seconds == 0.6
    redis.lpush(LOW, "x")
    timer.calls[0]()
    assert redis.llen(f"{SWEPT_KEY}:{LOW}") == 1
    step.stop(consumer)
    assert timer.calls == []


def test_the_sweep_survives_a_redis_outage(settings, monkeypatch, caplog):
    monkeypatch.setattr(ageing, "get_settings", lambda: settings.with_redis_url("redis://127.0.0.1:1/0"))
    timer = FakeTimer()
    AgeingSweep(None).start(SimpleNamespace(timer=timer))
    timer.calls[0]()
    assert "trying again" in caplog.text
