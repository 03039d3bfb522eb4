"""How a queue's lists are named, and how long they are."""

import json
from collections.abc import Iterable

import pytest
from celery import Celery
from redis import Redis

from kronos_client.celery_app import make_app
from kronos_client.contract.names import CELERY_PRIORITIES, CPU_QUEUE, GPU_FINETUNE_QUEUE, GPU_QUEUE
from kronos_client.redis.queues import (
    NO_PREFIX,
    PRIORITY_STEPS,
    large_key,
    list_key,
    list_keys,
    list_name,
    priority_of,
    queue_states,
)


def lists_sent_to(app: Celery, queue: str, redis: Redis, priorities: Iterable[int]) -> list[str]:
    """The list that a message of each priority reaches."""
    reached = []
    with app.connection_for_write() as connection, connection.SimpleQueue(queue) as simple_queue:
        for priority in priorities:
            simple_queue.put("", priority=priority)
            (key,) = redis.scan_iter(_type="list")
            redis.delete(key)
            reached.append(key)
    return reached


def test_lists_are_named_as_kombu_names_them(settings, redis):
    steps = list(CELERY_PRIORITIES.values())
    reached = lists_sent_to(make_app(settings), CPU_QUEUE, redis, steps)
    assert reached == [list_key(CPU_QUEUE, step) for step in steps]
    assert list_keys(CPU_QUEUE)[:2] == ["cpu", "cpu\x06\x163"]


def test_every_list_that_any_celery_client_sends_to_is_among_them(redis_server, redis):
    with Celery(broker=redis_server.url, set_as_current=False) as app:
        assert set(lists_sent_to(app, GPU_QUEUE, redis, range(256))) == set(list_keys(GPU_QUEUE))
    assert set(CELERY_PRIORITIES.values()) < set(PRIORITY_STEPS)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        *((number, "high") for number in (None, "9", -1, 0, 2)),
        *((number, "normal") for number in (3, 5)),
        *((number, "low") for number in (6, 9, 255)),
    ],
)
def test_a_number_counts_as_the_priority_of_its_list(number, name):
    assert priority_of(number) == name


def test_lengths_are_counted_by_queue_and_priority(redis):
    for key, num in zip(list_keys(CPU_QUEUE), (1, 2, 3, 4), strict=True):
        redis.lpush(key, *[json.dumps({})] * num)
    redis.lpush(list_key(GPU_FINETUNE_QUEUE, 3), "x")
    lengths = {queue: state.lengths for queue, state in queue_states(redis, 100).items()}
    assert list(lengths) == list(NO_PREFIX.all)
    assert lengths[CPU_QUEUE] == {"high": 1, "normal": 2, "low": 7}
    assert lengths[GPU_FINETUNE_QUEUE] == {"high": 0, "normal": 1, "low": 0}
    assert queue_states(redis, 100, [GPU_QUEUE])[GPU_QUEUE].lengths == {"high": 0, "normal": 0, "low": 0}


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("cpu", "cpu (high)"),
        (list_key("p.cpu.finetune", 6), "p.cpu.finetune (low)"),
        (large_key(list_key("cpu", 3)), "cpu (normal, large jobs)"),
        ("any \x06\x16text", "any  (high)"),
    ],
)
def test_lists_are_named_in_words(key, name):
    assert list_name(key) == name
