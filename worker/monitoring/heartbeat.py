"""Announces a worker every few seconds, on its own thread. No torch."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from pydantic import ValidationError
from redis import Redis
from redis.exceptions import RedisError

from kronos_client.contract.worker_status import WORKER_STATUS, WorkerStatus
from kronos_client.redis.routing import ANNOUNCEMENT_INTERVAL_S, announce, withdraw
from worker.monitoring.metrics import Rates

log = logging.getLogger(__name__)

RATE_WINDOW_S: Final = 60.0
"""Clients estimate from the rate of jobs when a full queue has room again."""


class Heartbeat:
    """Renews a worker's announcement until it is withdrawn.

    Args:
        status: Returns the announcement, to which ``jobs_per_s`` is added.
        is_alive: Called before each renewal. If it returns False, this renewal is the last.
    """

    def __init__(
        self, redis: Redis, node: str, status: Callable[[], WorkerStatus], is_alive: Callable[[], bool]
    ) -> None:
        self._redis = redis
        self._is_alive = is_alive
        self._node = node
        self._status = status
        self._rates, self._rate = Rates(RATE_WINDOW_S), 0.0
        self._is_over = False
        self._is_announced = False
        self._has_warned = False
        # Unlike an event's lock, it may be interrupted by a signal handler that uses it.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._renew, name="kronos-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def announce(self) -> None:
        try:
            status = self._status()
            num_ended = status.jobs_done + status.jobs_failed
            elapsed_s, num_jobs, busy_s = self._rates.growth(num_ended, status.busy_s or 0.0)
            seconds = elapsed_s if status.busy_s is None else busy_s
            if seconds:  # while it is idle, the last rate holds
                self._rate = round(num_jobs / seconds, 4)
            before = announce(self._redis, status.model_copy(update={"jobs_per_s": self._rate}))
            self._warn_of_namesake(before or "", status)
            self._is_announced = True
        except RedisError as error:
            log.warning("this worker could not be announced in Redis, trying again: %s", error)
        except Exception:  # without this thread the worker would seem to be gone
            log.exception("this worker could not be announced because of a defect, trying again")

    def announce_soon(self) -> None:
        """Announce the worker soon, on the heartbeat's thread. Safe in a signal handler."""
        self._wake.put(None)

    def withdraw(self) -> None:
        self._is_over = True
        self._wake.put(None)
        if self._thread.is_alive():
            self._thread.join(ANNOUNCEMENT_INTERVAL_S)  # a renewal in progress would announce it again
        try:
            withdraw(self._redis, self._node)
        except RedisError as error:
            log.warning("this worker's announcement could not be removed from Redis, it expires: %s", error)

    def _warn_of_namesake(self, before: bytes | str, status: WorkerStatus) -> None:
        """Warn, once, if another worker has replaced this one's announcement since the last."""
        with suppress(ValidationError):
            other = WORKER_STATUS.validate_json(before)
            is_other = (other.host, other.pid) != (status.host, status.pid)
            if is_other and self._is_announced and not self._has_warned:
                self._has_warned = True
                text = "process %s on %s is a worker named %s too: kronos status shows only one of them, and "
                text += "control commands reach both; start each with a --hostname of its own, or with none"
                log.warning(text, other.pid, other.host, self._node)

    def _renew(self) -> None:
        while not self._is_over:
            is_alive = self._is_alive()
            self.announce()
            if not is_alive:
                return
            with suppress(Empty):
                self._wake.get(timeout=ANNOUNCEMENT_INTERVAL_S)
