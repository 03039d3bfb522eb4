"""Jobs of low priority move up once they have waited long enough: to the back of the normal list.

Messages do not say when they were enqueued, and may be too large to be looked into. But a list is served in
order, and how many messages were ever taken off it is counted: of those that were there at some moment, as
many are left as there were, less those that were taken since. Notes of such moments (checkpoints) are kept in
Redis. What the newest note that is old enough still accounts for has waited for so long, and stands at the
list's end.

A message that comes back from a worker counts as one taken less. That is exact where what was taken last
comes back first. In any other order a younger one may move in an older one's place, and fewer may move than
could; more never do.
"""

import logging
from typing import Any, Final

from celery import bootsteps
from redis import Redis
from redis.exceptions import RedisError

from kronos_client.contract.names import CELERY_PRIORITIES, KEY_PREFIX
from kronos_client.redis.connection import connect
from kronos_client.redis.queues import PRIORITY_STEPS, QUEUES, list_key
from worker.broker.deliveries import TAKEN_KEY
from worker.settings import get_settings

log = logging.getLogger(__name__)

SWEPT_KEY: Final = f"{KEY_PREFIX}ageing"
"""There while no worker need sweep."""

MAX_MOVED: Final = 100
"""Messages of one list in one sweep."""
MAX_MOVED_BYTES: Final = 16 * 2**20
"""In one sweep, but for its last message: while they are copied, Redis serves nobody else."""

SWEEPS_PER_WAIT: Final = 100
MIN_INTERVAL_S: Final = 0.5

# KEYS: swept, taken, then for each list itself, its checkpoints, and where what is old goes. ARGV: seconds
# of waiting, seconds without another sweep, most messages of a list, and most bytes of all of them. Gives how
# many were moved.
#
# A checkpoint is a moment, the list's length then, and the count of messages taken off it until then. Where
# Redis's clock went back, or messages vanished uncounted (a queue was purged), the notes begin anew.
SWEEP: Final = """
if not redis.call('SET', KEYS[1], '1', 'PX', math.ceil(ARGV[2] * 1000), 'NX') then
    return 0
end
local moment = redis.call('TIME')
local now = moment[1] + moment[2] / 1000000
local waited_since = now - ARGV[1]
local num_moved, num_bytes = 0, 0

local function checkpoint(key, index)
    local note = redis.call('LINDEX', key, index)
    if note then
        local at, length, taken = string.match(note, '(%S+) (%S+) (%S+)')
        return {at = tonumber(at), length = tonumber(length), taken = tonumber(taken)}
    end
end

for index = 3, #KEYS, 3 do
    local source, checkpoints, destination = KEYS[index], KEYS[index + 1], KEYS[index + 2]
    local length = redis.call('LLEN', source)
    local taken = tonumber(redis.call('HGET', KEYS[2], source) or 0)
    local newest = checkpoint(checkpoints, -1)
    if newest and (newest.at > now or length + taken < newest.length + newest.taken) then
        redis.call('DEL', checkpoints)
        newest = nil
    end
    local following = checkpoint(checkpoints, 1)
    while following and following.at <= waited_since do
        redis.call('LPOP', checkpoints)
        following = checkpoint(checkpoints, 1)
    end
    local oldest = checkpoint(checkpoints, 0)
    if oldest and oldest.at <= waited_since then
        local num_old = math.min(oldest.length - (taken - oldest.taken), length, tonumber(ARGV[3]))
        while num_old > 0 and num_bytes < tonumber(ARGV[4]) do
            num_bytes = num_bytes + #redis.call('LMOVE', source, destination, 'RIGHT', 'LEFT')
            taken = redis.call('HINCRBY', KEYS[2], source, 1)
            length = length - 1
            num_old = num_old - 1
            num_moved = num_moved + 1
        end
    end
    if not newest or newest.length ~= length or newest.taken ~= taken then
        redis.call('RPUSH', checkpoints, string.format('%.6f %d %d', now, length, taken))
    end
end
return num_moved
"""


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
