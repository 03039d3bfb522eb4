"""How a queue's lists are named, and how long they are."""

import json

import pytest

from kronos_client.celery_app import make_app
from kronos_client.contract.names import CELERY_PRIORITIES, CPU_QUEUE, GPU_FINETUNE_QUEUE, GPU_QUEUE
from kronos_client.redis.queues import PRIORITY_STEPS, QUEUES, list_key, list_keys, priority_of, queue_lengths


@pytest.fixture
def channel(settings):
    """kombu's own, as our apps have it."""
    with make_app(settings).connection_for_write() as connection, connection.channel() as channel:
        yield channel


def test_lists_are_named_as_kombu_names_them(channel):
    for step in CELERY_PRIORITIES.values():
        assert list_key(CPU_QUEUE, step) == channel._q_for_pri(CPU_QUEUE, step)
    assert list_keys(CPU_QUEUE)[:2] == ["cpu", "cpu\x06\x163"]


def test_every_list_that_any_celery_client_sends_to_is_among_them(channel):
    channel.priority_steps = type(channel).priority_steps  # as without our configuration
    sent_to = {channel._q_for_pri(GPU_QUEUE, number) for number in range(256)}
    assert sent_to == set(list_keys(GPU_QUEUE))
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
    lengths = queue_lengths(redis)
    assert list(lengths) == list(QUEUES)
    assert lengths[CPU_QUEUE] == {"high": 1, "normal": 2, "low": 7}
    assert lengths[GPU_FINETUNE_QUEUE] == {"high": 0, "normal": 1, "low": 0}
    assert queue_lengths(redis, [GPU_QUEUE]) == {GPU_QUEUE: {"high": 0, "normal": 0, "low": 0}}
