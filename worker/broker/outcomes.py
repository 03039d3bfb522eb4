"""Ends jobs in Redis, and keeps an outcome until Redis accepts it."""

import logging
import math
import threading
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import RawValue
from typing import Any, Final

from redis.backoff import EqualJitterBackoff
from redis.exceptions import RedisError

from kronos_client.redis.job_store import Ended, Ending, JobStore, NotStored
from worker.broker.store_health import store_health

log = logging.getLogger(__name__)

MAX_KEPT_BYTES: Final = 64 * 2**20
"""Bytes of outcomes that wait for Redis; with more, the worker takes no further jobs."""
MAX_PAUSE_S: Final = 3.0
MAX_EXPONENT: Final = 10
"""redis-py doubles the pause so many times at most: it would overflow after hours."""
MAX_TRIES: Final = 10
"""Tries that fail although another outcome was stored since the one before; then the job is given up."""


class Outcomes:
    """Ends the jobs of one process. May be shared by threads.

    Attributes:
        num_kept_bytes: Bytes of outcomes that wait for Redis.
        on_end: Called with the task, the job's id and the outcome, once each outcome is stored.
        on_repeated: Called with the tag of a delivery whose outcome is given up at a shutdown.
        dead_entry: Returns the entry of a delivery for the dead messages, with this reason.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._num_stored = 0
        self.num_kept_bytes = 0
        self._kept_until = RawValue("d", math.inf)  # by time.monotonic; prefork children share their parent's
        self.on_end: Callable[[str, str, Any], object] = lambda task, job_id, outcome: None
        self.on_repeated: Callable[[str], object] = lambda tag: None
        self.dead_entry: Callable[[str, str, str], str] = lambda tag, job_id, reason: ""

    @property
    def has_room(self) -> bool:
        """Whether another job may be taken."""
        return self.num_kept_bytes < MAX_KEPT_BYTES

    def keep_for(self, seconds: float) -> None:
        """Keep outcomes that Redis refuses for this time at most: the worker shuts down."""
        self._kept_until.value = min(self._kept_until.value, time.monotonic() + seconds)

    def end(self, ending: Ending, *, task: str = "", outcome: Any = None, waits: bool = False) -> Ended:
        """Store and publish a job's outcome, and remove its message and its claim.

        Args:
            outcome: The result or error that ``ending`` has encoded.
            waits: Whether to try again until Redis accepts it, instead of raising its error.

        Raises:
            RedisError: The job has not ended: its message is delivered again.
        """
        try:
            return self._try(ending, task, outcome)
        except RedisError as error:
            if not waits:
                raise
            log.debug("job %s: its outcome is kept until Redis accepts it: %s", ending.job_id, error)
        self._keep(len(ending.outcome))
        try:
            return self._end_later(ending, task, outcome)
        finally:
            self._keep(-len(ending.outcome))

    def _end_later(self, ending: Ending, task: str, outcome: Any) -> Ended:
        pauses = EqualJitterBackoff(cap=MAX_PAUSE_S, base=0.1)
        num_tries = num_alone = 0
        failed_at = self._num_stored
        while True:
            num_tries += 1
            time.sleep(pauses.compute(min(num_tries, MAX_EXPONENT)))
            num_stored = self._num_stored
            try:
                return self._try(ending, task, outcome)
            except RedisError as error:
                num_alone += num_stored > failed_at
                failed_at = self._num_stored
                if num_alone >= MAX_TRIES and self._is_buried(ending, error):
                    raise
                if time.monotonic() > self._kept_until.value:
                    self.on_repeated(ending.tag)
                    raise

    def _try(self, ending: Ending, task: str, outcome: Any) -> Ended:
        try:
            (answer,) = self._store.end([ending])
            if isinstance(answer, NotStored):
                raise answer
        except RedisError as error:
            store_health.refused(error)
            raise
        if answer == "stored":
            store_health.accepted()
            with self._lock:
                self._num_stored += 1
            if outcome is not None:
                self.on_end(task, ending.job_id, outcome)
        return answer

    def _is_buried(self, ending: Ending, error: RedisError) -> bool:
        """Move the message of a job that alone cannot end to the dead messages; returns whether it moved."""
        reason = f"its outcome cannot be stored, though those of other jobs can: {error}"
        try:
            entry = self.dead_entry(ending.tag, ending.job_id, reason)
            (answer,) = self._store.end([Ending("", "", ending.tag, entry)])  # names no key of the job
        except RedisError:
            return False
        if isinstance(answer, NotStored):
            return False
        log.error("job %s went to kronos:dead: %s", ending.job_id, reason)
        return True

    def _keep(self, num_bytes: int) -> None:
        with self._lock:
            self.num_kept_bytes += num_bytes
