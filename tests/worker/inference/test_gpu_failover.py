"""When CPU workers stand in for the gpu pool: the decision, and the calls to the consumer."""

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from kronos_client.contract.names import CPU_QUEUE, GPU_QUEUE
from kronos_client.contract.worker_status import State
from kronos_client.redis.routing import ANNOUNCEMENT_INTERVAL_S, announce, withdraw
from kronos_client.testing import fake_worker
from worker.inference import gpu_failover
from worker.inference.gpu_failover import GpuFailover


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class FakeConsumer:
    """Queues and timer of Celery's consumer; the test makes the timer fire."""

    def __init__(self, *queues: str) -> None:
        self.consume_from = OrderedDict.fromkeys(queues)
        self.app = SimpleNamespace(
            amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=self.consume_from))
        )
        self.timer = self
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []
        self.changes: list[tuple[str, str]] = []

    def call_repeatedly(self, seconds: float, function: Any, args: tuple[Any, ...]) -> SimpleNamespace:
        assert seconds == ANNOUNCEMENT_INTERVAL_S
        entry = (function, args)
        self.calls.append(entry)
        return SimpleNamespace(cancel=lambda: self.calls.remove(entry))

    def tick(self) -> None:
        for function, args in self.calls:
            function(*args)

    def add_task_queue(self, queue: str) -> None:
        self.changes.append(("add", queue))
        self.consume_from[queue] = None

    def cancel_task_queue(self, queue: str) -> None:
        self.changes.append(("cancel", queue))
        del self.consume_from[queue]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def graceful(settings, clock, monkeypatch) -> GpuFailover:
    """With a clock that the test sets, and the default grace of 60 s."""
    monkeypatch.setattr(gpu_failover, "get_settings", lambda: settings)
    monkeypatch.setattr(gpu_failover.time, "monotonic", clock)
    return GpuFailover(None)


def announce_gpu(redis, state: State = "ready") -> None:
    announce(redis, fake_worker(GPU_QUEUE, state, node="gpu@1"))


def test_the_gpu_queue_is_taken_once_and_given_back_once(redis, graceful, clock):
    consumer = FakeConsumer(CPU_QUEUE)
    graceful.start(consumer)
    consumer.tick()
    assert consumer.changes == []
    announce_gpu(redis, "loading")  # not ready: nobody takes its jobs yet
    clock.now_s += 59
    consumer.tick()
    assert consumer.changes == []
    clock.now_s += 1
    for _ in range(3):
        consumer.tick()
    assert consumer.changes == [("add", GPU_QUEUE)]
    announce_gpu(redis)
    for _ in range(3):
        consumer.tick()
    assert consumer.changes == [("add", GPU_QUEUE), ("cancel", GPU_QUEUE)]
    withdraw(redis, "gpu@1")
    clock.now_s += 59  # the grace begins anew
    consumer.tick()
    assert len(consumer.changes) == 2
    clock.now_s += 1
    consumer.tick()
    assert consumer.changes[2:] == [("add", GPU_QUEUE)]


def test_after_a_reconnection_it_still_stands_in(redis, graceful, clock):
    consumer = FakeConsumer(CPU_QUEUE)
    graceful.start(consumer)
    clock.now_s += 60
    consumer.tick()
    graceful.stop(consumer)
    consumer.tick()
    graceful.start(consumer)
    assert len(consumer.calls) == 1
    announce_gpu(redis)
    consumer.tick()
    assert consumer.changes == [("add", GPU_QUEUE), ("cancel", GPU_QUEUE)]


def test_a_gpu_worker_never_leaves_its_own_queue(redis, graceful, clock):
    consumer = FakeConsumer(GPU_QUEUE)
    graceful.start(consumer)
    assert consumer.calls == []
    graceful.stop(consumer)


def refuse(*_: Any) -> None:
    raise RedisConnectionError("away")


def test_nothing_changes_while_redis_does_not_answer(redis, graceful, clock, monkeypatch):
    consumer = FakeConsumer(CPU_QUEUE)
    graceful.start(consumer)
    clock.now_s += 60
    consumer.tick()
    with monkeypatch.context() as patch:
        patch.setattr(gpu_failover, "live_workers", refuse)
        consumer.tick()
    assert consumer.changes == [("add", GPU_QUEUE)]
