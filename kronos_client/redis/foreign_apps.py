"""Signs of other apps on our queues, and of our jobs on theirs, where several apps share a Redis database."""

import re
from collections.abc import Collection
from itertools import chain
from typing import Any, Final

from redis import Redis
from redis.exceptions import ResponseError

from kronos_client.redis.connection import read_bytes
from kronos_client.redis.queues import SEPARATOR, list_keys

CELERY_QUEUE: Final = "celery"
"""The queue and exchange of an app that names none."""
MAX_READ: Final = 100
"""Messages of each list that are read."""
OUR_TASK: Final = re.compile(rb'"task": ?"kronos\.')


def foreign_bindings(redis: Redis, queues: Collection[str]) -> list[str]:
    """Descriptions of bindings of these queues that another app made, which has queues of the same names."""
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
    return sum(OUR_TASK.search(message) is not None for message in chain(*lists))


def _read(redis: Redis, *command: str | int) -> list[Any]:
    try:
        return read_bytes(redis, *command)
    except ResponseError:  # the user may not read another app's keys
        return []
