"""In which order a worker takes: classes by their shares, second lists by turns."""

from collections import Counter, deque

import pytest

from kronos_client.contract.names import FINETUNE_TASK, FORECAST_TASK
from kronos_client.redis.queues import large_key, list_key, queue_and_step, rank_of
from worker.broker.service_order import (
    ALL_ROOM,
    MAX_COST,
    NO_ROOM,
    OVERDUE_S,
    Large,
    Room,
    Rooms,
    ServiceOrder,
    cost_of,
    num_paths_of,
)

HIGH, NORMAL, LOW = 0, 1, 2
FIRST = {rank: list_key("cpu", step) for rank, step in ((HIGH, 0), (NORMAL, 3), (LOW, 6))}
ANY, SMALL, NONE = Room(True, Large.ANY), Room(True, Large.NONE), Room()


class Queue:
    """A queue with jobs of these costs, and the worker that takes them."""

    def __init__(self, **jobs: list[int]) -> None:
        self.order = ServiceOrder()
        self.jobs = {rank: deque(jobs.get(name, ())) for rank, name in enumerate(("high", "normal", "low"))}
        self.got: Counter[int] = Counter()  # what each class got

    def take(self, *rooms: Room) -> int | None:
        """The class of the job that is taken."""
        lists = self.order.lists(["cpu"], Rooms(rooms) if rooms else ALL_ROOM)
        found = {key for rank, key in FIRST.items() if self.jobs[rank] and key in lists}
        self.order.note_waiting(lists, found)
        key = next((key for key in lists if key in found), None)
        if key is None:
            return None
        rank = rank_of(queue_and_step(key)[1])
        cost = self.jobs[rank].popleft()
        self.order.note_taken(key, cost)
        self.got[rank] += cost
        return rank

    def served(self, num: int) -> Counter[int]:
        """What each class got so far, after so many more takes."""
        for _ in range(num):
            assert self.take() is not None
        return self.got


@pytest.mark.parametrize("costs", [(48, 48, 48), (1, 1, 1), (5000, 24, 24), (24, 24, 400)])
def test_a_class_gets_eight_times_what_the_next_gets(costs):
    high, normal, low = ([cost] * 5000 for cost in costs)
    got = Queue(high=high, normal=normal, low=low).served(5000)
    assert got[HIGH] / got[NORMAL] == pytest.approx(8, rel=0.1)
    assert got[HIGH] / got[LOW] == pytest.approx(64, rel=0.35)


def test_a_class_without_work_leaves_its_share_to_the_others():
    got = Queue(high=[1] * 1000, low=[1] * 1000).served(900)
    assert got == {HIGH: 800, LOW: 100}
    assert Queue(low=[1] * 100).served(100) == {LOW: 100}


def test_higher_classes_go_first_until_they_have_had_their_share():
    queue = Queue(high=[3] * 9, low=[3] * 2)
    assert [queue.take() for _ in range(12)] == [HIGH] * 8 + [LOW, HIGH, LOW, None]


def test_a_high_job_that_comes_alone_is_next():
    queue = Queue(low=[4000] * 50)
    for _ in range(10):
        assert queue.take() == LOW
        queue.jobs[HIGH].append(5000)
        assert queue.take() == HIGH


def test_nothing_is_owed_for_the_time_without_work():
    queue = Queue(high=[1] * 1000)
    queue.served(500)
    queue.jobs[LOW].extend([1] * 100)
    assert queue.served(90) == {HIGH: 580, LOW: 10}


def test_a_class_without_room_keeps_its_turn():
    queue = Queue(high=[1] * 100, low=[1] * 10)
    queue.served(20)
    for _ in range(40):
        assert queue.take(ANY, NONE, NONE) == HIGH
    assert queue.take() == LOW


def asked(*rooms: Room) -> dict[str, float]:
    return ServiceOrder().lists(["cpu", "gpu"], Rooms(rooms))


def test_all_queues_of_a_class_are_asked_before_the_next_class():
    low = [list_key(queue, step) for step in (6, 9) for queue in ("cpu", "gpu")]
    first = ["cpu", "gpu", list_key("cpu", 3), list_key("gpu", 3), *low]
    assert list(asked(SMALL, SMALL, SMALL)) == first
    both = ["cpu", "gpu", large_key("cpu"), large_key("gpu")]
    assert list(asked(ANY, NONE, NONE).items()) == [(key, 0) for key in both]


def test_second_lists_are_asked_for_what_there_is_room_for():
    assert asked(Room(True, Large.OVERDUE), NONE, NONE) == {
        **{"cpu": 0, "gpu": 0},
        **{large_key("cpu"): OVERDUE_S, large_key("gpu"): OVERDUE_S},
    }
    assert asked(Room(False, Large.ANY), NONE, NONE) == {large_key("cpu"): 0, large_key("gpu"): 0}
    assert asked(NONE, NONE, NONE) == {}


@pytest.mark.parametrize(
    ("queues", "rooms", "lists"),
    [
        (["cpu"], (ANY, NONE, NONE), ["cpu", large_key("cpu")]),
        (["cpu", "gpu"], (SMALL, NONE, NONE), ["cpu", "gpu"]),
        (["cpu"], (NONE, NONE, SMALL), [FIRST[LOW], list_key("cpu", 9)]),
    ],
)
def test_all_lists_of_a_class_are_taken_from_by_turns(queues, rooms, lists):
    order, taken = ServiceOrder(), []
    for _ in range(4):
        asked = order.lists(queues, Rooms(rooms))
        order.note_waiting(asked, asked)
        taken.append(next(iter(asked)))
        order.note_taken(taken[-1], 1)
    assert taken == lists * 2


def test_room_for_small_jobs_has_none_for_large_ones():
    rooms = Rooms((SMALL, ANY, NONE), max_small_paths=8)
    assert rooms.have_room("cpu", 8)
    assert not rooms.have_room("cpu", 9)
    assert rooms.have_room(large_key("cpu"), 9)  # it was asked for because there is room
    assert rooms.have_room(FIRST[NORMAL], 9)


def test_whether_there_is_any_room():
    assert ALL_ROOM
    assert not NO_ROOM
    assert Rooms((NONE, SMALL, NONE))


def job(sample_count=1, num_series: int = 1, **fields) -> list:
    series = [{"future_timestamps": ["2024-01-01"] * 5}] * num_series
    return [[], {"job": {"series": series, "sampling": {"sample_count": sample_count}} | fields}, {}]


@pytest.mark.parametrize(
    ("payload", "cost"),
    [
        (job(pred_len=24), 24),
        (job(7, 2, pred_len=24), 336),
        (job(7), 35),
        (job(pred_len="many"), 1),
        (job(pred_len=-3), 1),
        (job(10**4000, pred_len=10**4000), MAX_COST),
        ([[], {}, {}], 1),
        ([[], {"job": {"series": 7}}, {}], 1),
        ([[], {"job": "text"}, {}], 1),
    ],
)
def test_a_forecast_costs_its_bars_over_all_paths(payload, cost):
    assert cost_of(FORECAST_TASK, payload) == cost
    assert cost_of(FINETUNE_TASK, payload) == 1


@pytest.mark.parametrize(
    ("payload", "num_paths"),
    [
        ([[], {"job": {"series": [{}, {}], "sampling": {"sample_count": 5}}}, {}], 10),
        ([[], {"job": {"series": [{}]}}, {}], 1),
        ([[], {"job": {"series": [{}, {}], "sampling": None}}, {}], 2),
        ([[], {"job": {"series": [{}], "sampling": {"sample_count": -3}}}, {}], 1),
        ([[], {"job": {"series": [{}], "sampling": {"sample_count": "many"}}}, {}], 1),
        ([[], {"job": {"series": 7}}, {}], 1),
        ([[], {"job": {"series": [{}], "sampling": [1]}}, {}], 1),
        ([[], {"job": "text"}, {}], 1),
        ([[], {}, {}], 1),
        ({"args": []}, 1),
        (None, 1),
    ],
)
def test_paths_are_counted_in_any_message(payload, num_paths):
    assert num_paths_of(payload) == num_paths
