"""A queue in Redis: one list of messages for each priority, named and served as kombu 5.7 does.

Workers move large jobs that have to wait to a second list, and delayed ones to a sorted set of their list.
"""

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from redis import Redis
from redis.exceptions import ResponseError

from kronos_client.contract.names import CELERY_PRIORITIES, CPU_QUEUE, GPU_QUEUE, KEY_PREFIX, Priority, Role
from kronos_client.redis.connection import read_bytes
from kronos_client.redis.scripts import read_script

ROLE_QUEUES: Final[dict[Role, tuple[str, str]]] = {
    "forecast": (CPU_QUEUE, GPU_QUEUE),
    "finetune": (f"{CPU_QUEUE}.finetune", f"{GPU_QUEUE}.finetune"),
}
"""The queues that workers of a role take from, without a prefix."""
MAX_WAIT_S: Final = 7 * 24 * 3600
"""Seconds that the record of an unfinished job is kept."""


FEED: Final = ".feed"
"""The end of the name of a queue for feeds' jobs, which earlier releases do not read."""


def with_feeds(queue: str) -> tuple[str, ...]:
    """The queues whose lists a worker of a queue takes from: for forecasts also the one for feeds."""
    return (queue,) if role_of(queue) == "finetune" else (queue, f"{queue}{FEED}")


class QueueNames(NamedTuple):
    """The names of all queues. The prefix separates them from those of other apps on the same database."""

    prefix: str = ""

    def of_role(self, role: Role) -> tuple[str, str]:
        """The queues that workers of a role take from, on a CPU and on a GPU."""
        cpu_queue, gpu_queue = ROLE_QUEUES[role]
        return f"{self.prefix}{cpu_queue}", f"{self.prefix}{gpu_queue}"

    def on_device(self, device: str, role: Role = "forecast") -> str:
        """The queue of a worker on this resolved device, or of a job that asks for it by name."""
        return self.of_role(role)[device != "cpu"]

    @property
    def all(self) -> tuple[str, ...]:
        """The queues of both roles."""
        return *self.of_role("forecast"), *self.of_role("finetune")


NO_PREFIX: Final = QueueNames()


class DeliveryKeys(NamedTuple):
    """The keys of the messages that workers of one role have taken. Each script on deliveries takes them.

    Attributes:
        unacked: A hash of the messages by the tags of their deliveries.
        renewed: A sorted set of the tags, by the moment of the last renewal.
        claims: A hash of each delivery's timeout and its job's id.
    """

    unacked: str
    renewed: str
    claims: str


def delivery_keys(unacked: str) -> DeliveryKeys:
    """The keys of deliveries, all named after the first one."""
    return DeliveryKeys(unacked, f"{unacked}_index", f"{unacked}_claims")


# Not kombu's default keys: all apps on a database share those, and the shortest visibility timeout wins.
# Long tasks of other apps, or of workers of the other role, would then be delivered twice.
DELIVERY_KEYS: Final[dict[Role, DeliveryKeys]] = {
    "forecast": delivery_keys("kronos.forecast.unacked"),
    "finetune": delivery_keys("kronos.finetune.unacked"),
}

TAKEN_KEY: Final = f"{KEY_PREFIX}taken"
"""A hash: for each list, the number of messages ever taken off it, minus those that came back."""

LARGE_PREFIX: Final = f"{KEY_PREFIX}large:"
CANCELLED_PREFIX: Final = f"{KEY_PREFIX}cancelled:"
"""Sorted sets by list: ``lua/cancelled.lua`` documents them."""

SEPARATOR: Final = "\x06\x16"
"""kombu's separator between the parts of a name."""
PRIORITY_STEPS: Final = (0, 3, 6, 9)
"""The lowest of Celery's priority numbers in each list; 0 is served first.

They are kombu's, one more than ours: messages with priority 9 from other clients need a list too.
"""


def list_key(queue: str, step: int) -> str:
    """The list of one of ``PRIORITY_STEPS``: pushed at its left, served at its right."""
    return f"{queue}{SEPARATOR}{step}" if step else queue


def list_keys(queue: str) -> list[str]:
    """The lists of a queue that messages are sent to, the highest priority first."""
    return [list_key(queue, step) for step in PRIORITY_STEPS]


def large_key(key: str) -> str:
    """The second list of a list, for its large jobs. Neither kombu nor release 0.1.0 reads it."""
    return f"{LARGE_PREFIX}{key}"


@lru_cache(maxsize=64)
def waiting_keys(queue: str) -> tuple[str, ...]:
    """All lists with messages of a queue."""
    return tuple(key for first in list_keys(queue) for key in (first, large_key(first)))


def queue_and_step(key: str) -> tuple[str, int]:
    """The queue and step of a list. ``key`` may be any text, as in the next two functions."""
    queue, _, step = key.removeprefix(LARGE_PREFIX).partition(SEPARATOR)
    return queue, int(step) if step.isdecimal() else 0


def list_name(key: str) -> str:
    """A list in words, such as ``cpu (normal)``."""
    queue, step = queue_and_step(key)
    large = ", large jobs" if key.startswith(LARGE_PREFIX) else ""
    return f"{queue} ({priority_of(step)}{large})"


def role_of(key: str) -> Role:
    """The role of the workers that take from a list."""
    return "finetune" if queue_and_step(key)[0].endswith(".finetune") else "forecast"


def is_gpu_queue(queue: str) -> bool:
    """Whether GPU workers take from a queue."""
    return queue.removesuffix(".finetune").removesuffix(FEED).endswith(GPU_QUEUE)


def priority_of(number: object) -> Priority:
    """The priority for a message's number; high if it has none."""
    if not isinstance(number, int | float):
        return "high"
    return max((own, name) for name, own in CELERY_PRIORITIES.items() if own <= max(0, number))[1]


def rank_of(number: object) -> int:
    """The place of a message's priority class; 0 is the highest."""
    return list(CELERY_PRIORITIES).index(priority_of(number))


def return_large(redis: Redis, queues: Iterable[str] = NO_PREFIX.all) -> int:
    """Move the messages of second lists back to the first ones, which release 0.1.0 reads. Returns how many.

    Messages that workers have taken from second lists come back to the first ones too.
    """
    run = redis.register_script(read_script("return_large"))
    held = [keys.unacked for keys in DELIVERY_KEYS.values()]
    lists = [key for queue in queues for key in list_keys(queue)]
    return sum(int(run(keys=[key, large_key(key), TAKEN_KEY, *held])) for key in lists)


class QueueState(NamedTuple):
    """What waits in a queue.

    Attributes:
        lengths: Waiting messages by priority, without delayed ones, those that workers hold, and those of
            cancelled jobs, up to the limit of these.
        delayed: Messages that wait for their time.
        due: Delayed messages whose time has come, and which no worker has taken.
        oldest_s: Seconds since the oldest waiting job was admitted; 0 if none waits or the time is unknown.
        of_feeds: Those of ``lengths`` that feeds' due series make.
    """

    lengths: dict[str, int]
    delayed: int
    due: int
    oldest_s: float
    of_feeds: int


def queue_states(redis: Redis, limit: int, queues: Iterable[str] = NO_PREFIX.all) -> dict[str, QueueState]:
    """What waits for the workers of each queue. ``limit`` is the senders' ``KRONOS_MAX_QUEUE_JOBS``."""
    run = redis.register_script(read_script("queue_state"))
    lists = {queue: [key for name in with_feeds(queue) for key in waiting_keys(name)] for queue in queues}
    num_lists = len(PRIORITY_STEPS) * 2
    answers: Any = run(keys=[key for keys in lists.values() for key in keys], args=[limit, num_lists])
    found = {}
    for queue, keys in lists.items():
        own, answers = answers[: len(keys)], answers[len(keys) :]
        lengths: dict[str, int] = dict.fromkeys(CELERY_PRIORITIES, 0)
        for key, (length, *_) in zip(keys, own, strict=True):
            lengths[priority_of(queue_and_step(key)[1])] += length
        _, delayed, due, oldest_s, of_feeds = zip(*own, strict=True)
        oldest = max(map(float, oldest_s))
        found[queue] = QueueState(lengths, sum(delayed), sum(due), oldest, sum(of_feeds))
    return found


CELERY_QUEUE: Final = "celery"
"""The queue and exchange of an app that names none."""
MAX_READ: Final = 100
"""Messages of each list that are read."""
OUR_TASK: Final = rb'"task": ?"kronos\.'


def foreign_bindings(redis: Redis, queues: Collection[str]) -> list[str]:
    """Describe the bindings of these queues that another app made: it has queues of the same names."""
    found = []
    for exchange in (CELERY_QUEUE, *queues):
        for member in sorted(_read(redis, "SMEMBERS", f"_kombu.binding.{exchange}")):
            queue = member.decode(errors="replace").rpartition(SEPARATOR)[2]
            if queue != exchange and (queue in queues or exchange in queues):
                found.append(f"the queue {queue!a} is bound to the exchange {exchange!a}")
    return found


def num_misplaced(redis: Redis) -> int:
    """How many of our jobs are among the newest messages of Celery's default queue, which no worker reads."""
    lists = [_read(redis, "LRANGE", key, 0, MAX_READ - 1) for key in list_keys(CELERY_QUEUE)]
    return sum(re.search(OUR_TASK, message) is not None for messages in lists for message in messages)


def _read(redis: Redis, *command: str | int) -> list[Any]:
    try:
        return read_bytes(redis, *command)
    except ResponseError:  # the user may not read another app's keys
        return []
