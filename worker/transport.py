"""The one file that leans on how kombu's Redis transport works; checked against kombu 5.7.0.

kombu keeps every message that is not acknowledged yet in a hash, and the moment of its delivery in a sorted
set. Whatever is older there than the visibility timeout, any worker delivers again: so jobs of a worker that
was killed come back, and so would a job that merely takes long. The heartbeat here renews the moments of all
jobs that this process runs or holds. That lets the timeout be short. Moments are those of each machine's own
clock, kombu's too: clocks must agree to within a fraction of the timeout.
"""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

from celery import bootsteps
from celery.worker import state
from redis import Redis

from worker.celery_config import UNACKED_INDEX_KEY
from worker.connection import connect
from worker.settings import get_settings

log = logging.getLogger(__name__)

RENEWALS_PER_TIMEOUT: Final = 4
"""Three renewals in a row may be lost before a job is taken for abandoned."""


def held_delivery_tags() -> set[str]:
    """Deliveries that this process has not come to an end with, by Celery's own account.

    What ended but could not be acknowledged is not among them: it shall be delivered again.
    """
    requests: list[Any] = [*state.requests.copy().values(), *set(state.active_requests)]
    return {request.message.delivery_tag for request in requests}


def renew(redis: Redis, tags: Iterable[str]) -> None:
    """Count these deliveries as made now. One that was acknowledged meanwhile is not brought back (XX)."""
    moments = {tag: time.time() for tag in tags}
    if moments:
        redis.zadd(UNACKED_INDEX_KEY, moments, xx=True)


class DeliveryHeartbeat(bootsteps.StartStopStep):
    """Renews what this process holds, from the first connection until the process ends.

    On a thread of its own, since the consumer's may be busy (solo pool); and past the consumer's end, since
    running jobs are finished after it.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        settings = get_settings()
        self._interval_s = settings.visibility_timeout_s / RENEWALS_PER_TIMEOUT
        self._redis = connect(settings.redis_url.get_secret_value())
        self._thread = threading.Thread(target=self._beat, name="kronos-deliveries", daemon=True)

    def start(self, consumer: Any) -> None:
        """Called at every (re)connection."""
        if not self._thread.is_alive():
            self._thread.start()

    def _beat(self) -> None:
        while True:
            time.sleep(self._interval_s)
            try:
                renew(self._redis, held_delivery_tags())
            except Exception:  # the next renewal must be tried, whatever became of this one
                log.warning("deliveries could not be renewed, trying again", exc_info=True)
