"""How many jobs a worker takes: the rule, the count of its jobs, and the answer to kombu."""

import time
from collections.abc import Container
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from celery.worker import state

from kronos_model.engine.reports import EngineLoad, StepReport
from worker.broker.service_order import ALL_ROOM, Large, Room
from worker.inference.capacity import (
    LATE_S,
    MAX_HELD_BYTES,
    RESERVED_BYTES,
    Capacity,
    CapacityStep,
    max_held_jobs,
    num_jobs_allowed,
)

SLOTS = 8


@pytest.mark.parametrize(
    ("num_jobs", "num_paths", "allowed"),
    [
        (0, 0, 8),  # idle: a job for each slot
        (1, 1, 8),
        (1, 5, 4),  # three slots are free
        (1, 64, 1),  # one large job fills the worker
        (8, 8, 8),
        (8, 7, 9),  # a job's result is being stored, its slot is free
        (12, 0, 16),
        (16, 0, 16),  # however free the slots
        (40, 0, 16),
        (0, 64, 1),  # an idle worker always takes a job
    ],
)
def test_jobs_are_allowed_as_slots_are_free(num_jobs, num_paths, allowed):
    assert num_jobs_allowed(num_jobs, num_paths, SLOTS) == allowed


def test_a_worker_without_engine_takes_one_job():
    assert num_jobs_allowed(0, 0, slots=0) == 1


def has_room(capacity: Capacity, unfinished: Container[str]) -> bool:
    """Whether it takes a job of any class and size."""
    return capacity.rooms(unfinished).of_class == ALL_ROOM.of_class


def num_classes(capacity: Capacity, unfinished: Container[str]) -> int:
    """How many classes, from the highest, it takes a job of any size of."""
    return sum(room == (True, Large.ANY) for room in capacity.rooms(unfinished).of_class)


class Engines:
    """The engines' load, as the test says it is."""

    def __init__(self) -> None:
        self.load = EngineLoad(0, 0, SLOTS)

    def hold(self, running: int, waiting: int = 0) -> None:
        self.load = EngineLoad(running, waiting, SLOTS)


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
def capacity(engines) -> Capacity:
    return Capacity(lambda: [engines.load])


def test_a_job_counts_from_its_receipt_and_once(capacity, engines):
    capacity.take("a", 5)
    assert has_room(capacity, {"a"})
    capacity.take("b", 3)
    assert not has_room(capacity, {"a", "b"})
    engines.hold(running=5)
    capacity.admitted("a")
    assert not has_room(capacity, {"a", "b"})
    engines.hold(running=4)  # the first of its paths is done
    assert has_room(capacity, {"a", "b"})


def test_paths_that_wait_in_the_engine_are_held(capacity, engines):
    capacity.take("a", 64)
    capacity.admitted("a")
    engines.hold(running=3, waiting=5)
    assert not has_room(capacity, {"a"})
    engines.hold(running=3, waiting=4)
    assert has_room(capacity, {"a"})


def test_jobs_that_are_done_but_not_ended_are_bounded_too(capacity):
    jobs = {str(number) for number in range(2 * SLOTS)}
    for job in jobs:
        capacity.take(job, 1)
        capacity.admitted(job)
    assert not has_room(capacity, jobs)
    assert has_room(capacity, jobs - {"0"})


def test_a_job_that_was_never_taken_is_not_noted_when_admitted(capacity):
    capacity.admitted("sent with a countdown")
    assert has_room(capacity, set())


def test_the_consumer_is_woken_once_when_a_job_still_running_leaves_room(capacity, engines):
    woken = []
    capacity.wake_by(lambda: woken.append(True))

    def step(running: int) -> None:
        engines.hold(running)
        capacity.observe_step("m", StepReport(), engines.load)

    capacity.take("a", 64)
    capacity.admitted("a")
    step(running=4)
    assert woken == []  # it was not waiting
    engines.hold(running=8, waiting=20)
    assert not has_room(capacity, {"a"})
    step(running=8)
    assert woken == []
    step(running=7)
    step(running=6)
    assert woken == [True]


def test_held_jobs_count_on_the_next_connection_too(capacity, monkeypatch):
    monkeypatch.setattr(state, "requests", {"a": None})
    consumer, step = MagicMock(on_task_message=set()), CapacityStep(None)
    consumer.controller.capacity = capacity
    step.start(consumer)
    (receive,) = consumer.on_task_message
    assert consumer.task_consumer.channel.rooms()
    job = {"series": [{}], "sampling": {"sample_count": 64}}
    message = SimpleNamespace(body=[[], {"job": job}, {}], properties={"num_bytes": 0})
    receive(SimpleNamespace(id="a", message=message, delivery_info={"priority": 0}))
    consumer.task_consumer.channel = SimpleNamespace()
    step.start(consumer)
    assert not consumer.task_consumer.channel.rooms()
    assert len(consumer.on_task_message) == 1


def has_room_for_more(*loads: EngineLoad, num_coming: int = 0) -> bool:
    """Whether a worker with these engines, a job in one of them, takes another."""
    capacity = Capacity(lambda: loads, 2**31)
    capacity.take("running", SLOTS)
    capacity.admitted("running")
    if num_coming:
        capacity.take("coming", num_coming)
    return has_room(capacity, {"running", "coming"})


FULL, IDLE = EngineLoad(SLOTS, 0, SLOTS), EngineLoad(0, 0, SLOTS)


def test_with_one_full_engine_jobs_for_another_are_taken_one_at_a_time():
    assert has_room_for_more(FULL, IDLE)
    assert not has_room_for_more(FULL, IDLE, num_coming=1)
    assert not has_room_for_more(EngineLoad(SLOTS, 1, SLOTS), IDLE)  # the last one that was tried has to wait
    assert not has_room_for_more(FULL, FULL)
    assert has_room_for_more(EngineLoad(SLOTS - 1, 0, SLOTS), IDLE)


HIGH, NORMAL, LOW = 0, 1, 2
NONE = Room()


def test_a_worker_full_of_low_jobs_takes_higher_ones_at_once(capacity, engines):
    capacity.take("low", 256, rank=LOW)
    capacity.admitted("low")
    engines.hold(running=SLOTS, waiting=200)
    assert num_classes(capacity, {"low"}) == 1 + NORMAL
    capacity.take("normal", SLOTS, rank=NORMAL)
    assert num_classes(capacity, {"low", "normal"}) == 1 + HIGH
    capacity.take("high", SLOTS, rank=HIGH)
    assert num_classes(capacity, {"low", "normal", "high"}) == 0


class Clock:
    """The time, as the test says it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def late(self, capacity: Capacity, held: Container[str]) -> tuple[Room, ...]:
        """The room of a worker that has been full for a while."""
        capacity.rooms(held)
        self.now += LATE_S
        return capacity.rooms(held).of_class


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


FULL_OF_LARGE = EngineLoad(64, 4000, 64)


def full_of_large(num: int = 1, rank: int = NORMAL) -> Capacity:
    capacity = Capacity(lambda: [FULL_OF_LARGE])
    for number in range(num):
        capacity.take(f"large-{number}", 4096, rank=rank)
        capacity.admitted(f"large-{number}")
    return capacity


def test_a_worker_that_is_full_of_large_jobs_takes_small_ones_that_no_other_took_in_time(clock):
    capacity, held = full_of_large(2), {"large-0", "large-1"}
    assert capacity.rooms(held).max_small_paths == 8
    for number in range(4):
        assert capacity.rooms(held).of_class[NORMAL] == NONE  # at once
        assert clock.late(capacity, held)[NORMAL] == (True, Large.OVERDUE)
        capacity.take(str(number), 8, rank=NORMAL)
        held.add(str(number))
    assert clock.late(capacity, held)[NORMAL] == (False, Large.OVERDUE)  # half the slots are theirs


def test_after_a_small_job_other_workers_have_a_part_of_the_time(clock):
    capacity, held = full_of_large(2), {"large-0", "large-1", "small"}
    assert clock.late(capacity, held)[NORMAL].small
    capacity.take("small", 1, rank=NORMAL)
    assert not capacity.rooms(held).of_class[NORMAL].small
    clock.now += LATE_S / 8
    assert capacity.rooms(held).of_class[NORMAL].small


def test_a_full_worker_takes_large_jobs_while_its_own_leave_slots(clock):
    capacity, held = Capacity(lambda: [FULL_OF_LARGE]), set()
    for number in range(4):
        assert clock.late(capacity, held)[LOW].large is Large.ANY
        capacity.take(str(number), 20, rank=LOW)
        capacity.admitted(str(number))
        held.add(str(number))
    assert clock.late(capacity, held)[LOW] == (True, Large.OVERDUE)


def test_one_more_large_job_is_taken_once_it_is_overdue(clock):
    for num, large in ((1, Large.ANY), (2, Large.OVERDUE), (3, Large.NONE)):
        held = {f"large-{number}" for number in range(num)}
        assert clock.late(full_of_large(num), held)[NORMAL] == (True, large)


def test_the_only_slot_is_shared_by_a_small_job_and_a_large_one(clock):
    capacity = Capacity(lambda: [EngineLoad(1, 49, 1)])
    capacity.take("large", 50, rank=NORMAL)
    assert clock.late(capacity, {"large"})[NORMAL] == (True, Large.OVERDUE)
    capacity.take("small", 1, rank=NORMAL)
    assert clock.late(capacity, {"large", "small"})[NORMAL] == (False, Large.OVERDUE)


def test_each_class_has_its_share_while_others_fill_the_worker(clock):
    for rank in (NORMAL, LOW):
        capacity, held = Capacity(lambda: [EngineLoad(64, 0, 64)]), {"more"}
        for number in range(64):
            capacity.take(f"high-{number}", 1, rank=HIGH)
            held.add(f"high-{number}")
        assert clock.late(capacity, held)[rank] == (True, Large.ANY)
        capacity.take("more", 7, rank=rank)
        assert clock.late(capacity, held)[rank] == (False, Large.ANY)


def test_a_full_pool_of_high_jobs_leaves_threads_for_lower_ones():
    capacity = Capacity(lambda: [EngineLoad(0, 0, 1000)])
    capacity._max_jobs = max_held_jobs(64)
    held = {str(number) for number in range(capacity._max_jobs - 1)}
    for job in held:
        capacity.take(job, 1, MAX_HELD_BYTES // 64, rank=HIGH)
    assert has_room(capacity, held)


def test_high_jobs_that_keep_coming_do_not_hold_back_late_ones(clock):
    capacity = full_of_large()
    for number in range(3):
        assert capacity.rooms({"large-0"}).of_class[NORMAL] == NONE
        capacity.take(f"high-{number}", 1, rank=HIGH)
        clock.now += LATE_S / 2.5
    assert capacity.rooms({"large-0"}).of_class[NORMAL].small


def test_a_full_worker_is_woken_when_jobs_may_be_late(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    full, woken = EngineLoad(32, 500, 32), []
    capacity = Capacity(lambda: [full])
    capacity.wake_by(lambda: woken.append(True))
    capacity.take("a", 256)
    assert num_classes(capacity, {"a"}) == 0
    for _ in range(10):
        capacity.observe_step("m", StepReport(), full)
        now[0] += LATE_S / 5
    assert len(woken) == 1


@pytest.mark.parametrize(
    ("max_jobs", "num_extra"), [(1, 1), (4, 1), (7, 1), (8, 1), (15, 1), (16, 2), (64, 8), (512, 64)]
)
def test_threads_are_kept_for_jobs_of_each_higher_class(max_jobs, num_extra):
    most = max_held_jobs(max_jobs)
    assert most == max_jobs + 2 * num_extra
    capacity, held = Capacity(lambda: [EngineLoad(0, 0, 1000)], most), set()
    for number in range(most):
        expected = 3 if number < max_jobs else 2 if number < max_jobs + num_extra else 1
        assert num_classes(capacity, held) == expected
        capacity.take(str(number), 1, rank=LOW)
        held.add(str(number))
    assert num_classes(capacity, held) == 0


def test_a_worker_of_one_job_takes_one_of_any_class(capacity):
    capacity._max_jobs = 1
    assert has_room(capacity, set())
    capacity.take("low", 1, rank=LOW)
    assert num_classes(capacity, {"low"}) == 0


@pytest.mark.parametrize("slots", [SLOTS, 1000])
def test_large_messages_of_one_class_leave_room_for_higher_ones(slots):
    capacity = Capacity(lambda: [EngineLoad(0, 0, slots)])
    held = set()

    def fill(rank: int, num_bytes: int) -> None:
        capacity.take(str(len(held)), 1, num_bytes, rank)
        held.add(str(len(held)))

    fill(LOW, MAX_HELD_BYTES - 1)
    assert has_room(capacity, held)
    fill(LOW, 1)
    assert num_classes(capacity, held) == 1 + NORMAL
    fill(NORMAL, RESERVED_BYTES)
    assert num_classes(capacity, held) == 1 + HIGH
    fill(HIGH, RESERVED_BYTES)
    assert num_classes(capacity, held) == 0
    assert has_room(capacity, held - {"0"})
