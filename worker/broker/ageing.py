"""Moves jobs of low priority up once they have waited long enough: to the back of the normal list.

A message does not say when it was enqueued, and may be too large to look into. But a list is served in order,
and Redis counts how many messages were ever taken off it. Of those that were there at some moment, as many
are left as there were, less those that were taken since. Redis keeps notes of such moments. The newest note
that is old enough gives how many messages, at the list's end, have waited so long.

A message that comes back from a worker counts as one taken less. That is exact if what was taken last comes
back first. Otherwise a younger message may move in an older one's place, and fewer may move than could; more
never do.

Simpler designs were weighed. One note a list would save ten lines, and move a job up to twice as late. A
share of turns for the low lists would need no notes, but then ``KRONOS_LOW_PRIORITY_MAX_WAIT_S`` means
nothing.
"""

import logging
from typing import Any, Final

from celery import bootsteps
from redis import Redis
from redis.exceptions import RedisError

from kronos_client.contract.names import CELERY_PRIORITIES, KEY_PREFIX
from kronos_client.redis.connection import connect
from kronos_client.redis.queues import PRIORITY_STEPS, QUEUES, list_key
from kronos_client.redis.scripts import read_script
from worker.broker.deliveries import SCRIPTS, TAKEN_KEY
from worker.settings import get_settings

log = logging.getLogger(__name__)

SWEPT_KEY: Final = f"{KEY_PREFIX}ageing"
"""It exists while no worker needs to sweep."""

MAX_MOVED: Final = 100
"""Messages of one list in one sweep."""
MAX_MOVED_BYTES: Final = 16 * 2**20
"""In one sweep, but for its last message: while they are copied, Redis serves nobody else."""

SWEEPS_PER_WAIT: Final = 100
MIN_INTERVAL_S: Final = 0.5

SWEEP: Final = read_script("age", SCRIPTS)


class Ageing:
    """Moves up what has waited for ``max_wait_s`` in the lists below normal priority, of all our queues."""

    def __init__(self, redis: Redis, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self.interval_s = max(MIN_INTERVAL_S, max_wait_s / SWEEPS_PER_WAIT)
        self._run = redis.register_script(SWEEP)
        normal = CELERY_PRIORITIES["normal"]
        self._keys = [SWEPT_KEY, TAKEN_KEY]
        for queue in QUEUES:
            for step in PRIORITY_STEPS:
                if step > normal:
                    source = list_key(queue, step)
                    self._keys += [source, f"{SWEPT_KEY}:{source}", list_key(queue, normal)]

    def sweep(self) -> int:
        """Move up what is old enough, unless a worker did within the interval; how many messages moved."""
        # A little less than the interval, lest a worker that sweeps alone comes too early every second time.
        throttle_s = 0.9 * self.interval_s
        args = [self._max_wait_s, throttle_s, MAX_MOVED, MAX_MOVED_BYTES]
        return int(self._run(keys=self._keys, args=args))


class AgeingSweep(bootsteps.StartStopStep):
    """Sweeps every few seconds, in the consumer's own thread."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        settings = get_settings()
        redis = connect(settings.redis_url.get_secret_value())
        self._ageing = Ageing(redis, settings.low_priority_max_wait_s)
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        """Called at every (re)connection."""
        self._timer = consumer.timer.call_repeatedly(self._ageing.interval_s, self._sweep)

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        try:
            num_moved = self._ageing.sweep()
        except RedisError as error:
            log.warning("jobs of low priority could not be looked after, trying again: %s", error)
            return
        if num_moved:
            log.info("%d jobs of low priority waited long enough: they count as normal now", num_moved)
