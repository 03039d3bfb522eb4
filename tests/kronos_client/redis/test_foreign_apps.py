"""What shows that another app uses our queues, or that our jobs went to its queue."""

import pytest
from celery import Celery
from kombu import Queue

from kronos_client.contract.names import FORECAST_TASK
from kronos_client.redis.queues import NO_PREFIX, QueueNames, foreign_bindings, num_misplaced


@pytest.fixture
def other(redis, redis_server):
    with Celery("other", broker=redis_server.url, set_as_current=False) as app:
        yield app


def test_a_job_sent_without_a_queue_is_noticed_and_other_apps_tasks_are_not(redis, other):
    assert num_misplaced(redis) == 0
    for priority in (0, 6):
        other.send_task(FORECAST_TASK, kwargs={"job": {}}, priority=priority)
        other.send_task("theirs.task")
    redis.lpush("celery", b"\xff\xfe")
    assert num_misplaced(redis) == 2
    redis.flushall()
    redis.set("celery", "of another type")
    assert num_misplaced(redis) == 0


def test_a_sender_to_our_queues_is_no_foreign_app(redis, other):
    other.send_task(FORECAST_TASK, kwargs={"job": {}}, queue="cpu")
    other.send_task("theirs.task")
    assert foreign_bindings(redis, NO_PREFIX.all) == []


@pytest.mark.parametrize("names", [NO_PREFIX, QueueNames("ours.")])
def test_a_queue_of_the_same_name_in_another_app_is_noticed(redis, other, names):
    other.conf.task_queues = [Queue("celery"), Queue("cpu")]
    with other.connection_for_read() as connection:  # as its worker declares it
        other.amqp.queues["cpu"](connection.channel()).declare()
    expected = [] if names.prefix else ["the queue 'cpu' is bound to the exchange 'celery'"]
    assert foreign_bindings(redis, names.all) == expected
