"""Types of what a worker gets from Celery and kombu, where celery-types says Any or nothing."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from celery import Celery, Task
from celery.bootsteps import Blueprint
from celery.worker.request import Request
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

if TYPE_CHECKING:
    from worker.broker.claims import Claims
    from worker.inference.capacity import Capacity

AnyTask: TypeAlias = "Task[Any, Any]"
Body: TypeAlias = list[Any]
"""The parsed body of a message: ``[args, kwargs, embed]``."""


class Worker(Protocol):
    """Celery's worker: the sender of its signals, and the ``controller`` of its consumer."""

    app: Celery
    hostname: str
    options: dict[str, object]
    pool_cls: type
    concurrency: int
    exitcode: int | None
    quiet: bool
    capacity: "Capacity"  # these three are ours
    claims: "Claims"
    on_tick: Callable[[], object]


class Consumer(Protocol):
    """Celery's consumer, the parent of our steps."""

    app: Celery
    hub: Hub
    timer: Timer
    blueprint: Blueprint
    controller: Worker
    task_consumer: Any  # kombu's, whose channel is ours
    event_dispatcher: Any
    on_task_message: set[Callable[[Request], object]]

    def add_task_queue(self, queue: str) -> object: ...

    def cancel_task_queue(self, queue: str) -> object: ...
