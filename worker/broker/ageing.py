"""Moves jobs of low priority to the back of the normal list once they have waited long enough.

A message does not say when it was enqueued, and may be too large to parse. But each list is served in order,
and Redis counts the messages that were ever taken off it. A note holds a moment, with the list's length and
this count at that moment. Of the messages in the list then, those not taken since are still there, at the
list's end. The newest note that is old enough gives how many messages have waited long enough.

A message that comes back from a worker lowers the count by one. This is exact if messages come back in the
reverse order. Otherwise a younger message may move in place of an older one, but never too many. With one
note for each list, jobs would move up to twice as late.
"""

import itertools
import logging
from collections.abc import Iterable
from typing import Any, Final

from celery import bootsteps
from redis import Redis
from redis.exceptions import RedisError

from kronos_client.contract.names import CELERY_PRIORITIES, KEY_PREFIX
from kronos_client.redis.connection import connect
from kronos_client.redis.queues import NO_PREFIX, PRIORITY_STEPS, TAKEN_KEY, list_key
from kronos_client.redis.scripts import read_script
from worker.broker.deliveries import SCRIPTS
from worker.settings import get_settings

log = logging.getLogger(__name__)

SWEPT_KEY: Final = f"{KEY_PREFIX}ageing"
"""This key exists while no worker needs to sweep."""
MAX_MOVED: Final = 100
"""Messages of one list that one sweep may move."""
MAX_MOVED_BYTES: Final = 16 * 2**20
"""Bytes that one sweep may move, not counting its last message: Redis serves no one else meanwhile."""
SWEEPS_PER_WAIT: Final = 100
MIN_INTERVAL_S: Final = 0.5
SWEEP: Final = read_script("age", SCRIPTS)


class Ageing:
    """Moves up the messages below normal priority that have waited for ``max_wait_s``, in these queues."""

    def __init__(self, redis: Redis, max_wait_s: float, queues: Iterable[str] = NO_PREFIX.all) -> None:
        self._max_wait_s = max_wait_s
        self.interval_s = max(MIN_INTERVAL_S, max_wait_s / SWEEPS_PER_WAIT)
        self._run = redis.register_script(SWEEP)
        normal = CELERY_PRIORITIES["normal"]
        self._keys = [SWEPT_KEY, TAKEN_KEY]
        for queue, step in itertools.product(queues, PRIORITY_STEPS):
            if step > normal:
                source = list_key(queue, step)
                self._keys += [source, f"{SWEPT_KEY}:{source}", list_key(queue, normal)]

    def sweep(self) -> int:
        """Move old messages up, unless a worker did so within the interval. Returns how many moved."""
        throttle_s = 0.9 * self.interval_s  # else a single worker would be too early for every second sweep
        args = [self._max_wait_s, throttle_s, MAX_MOVED, MAX_MOVED_BYTES]
        return int(self._run(keys=self._keys, args=args))


class AgeingSweep(bootsteps.StartStopStep):
    """Sweeps every few seconds, on the consumer's thread."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        settings = get_settings()
        redis = connect(settings.redis_url.get_secret_value())
        self._ageing = Ageing(redis, settings.low_priority_max_wait_s, settings.queue_names.all)
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        """Celery calls it at every (re)connection."""
        self._timer = consumer.timer.call_repeatedly(self._ageing.interval_s, self._sweep)

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        try:
            num_moved = self._ageing.sweep()
        except RedisError as error:
            log.warning("jobs of low priority could not be moved up, trying again: %s", error)
            return
        if num_moved:
            log.info("%d jobs of low priority have waited long: their priority is normal now", num_moved)
