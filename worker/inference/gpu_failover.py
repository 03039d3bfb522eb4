"""CPU workers take jobs from the gpu queue after no GPU worker was ready for a while.

Jobs that allow the fallback run here, with a warning in their result. The others fail with NO_GPU_WORKER.
When a GPU worker is ready again, CPU workers leave the gpu queue.
"""

import logging
import time

from celery import bootsteps
from kombu.asynchronous.timer import Entry
from redis.exceptions import RedisError

from kronos_client.redis.routing import ANNOUNCEMENT_INTERVAL_S, is_gpu_ready, live_workers
from worker.broker.connecting import redis_of
from worker.celery_types import Consumer
from worker.settings import get_settings

log = logging.getLogger(__name__)


class GpuFailover(bootsteps.StartStopStep):
    """Checks the announcements every few seconds, on the consumer's thread."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Consumer, **kwargs: object) -> None:
        super().__init__(parent, **kwargs)
        settings = get_settings()
        self._redis = redis_of(settings.redis_url.get_secret_value())
        self._names = settings.queue_names
        self._cpu_queue, self._gpu_queue = self._names.of_role("forecast")
        self._grace_s = settings.gpu_grace_s
        self._last_ready = time.monotonic()
        self._standing_in = False
        self._timer: Entry | None = None

    def start(self, consumer: Consumer) -> None:
        """Called at every (re)connection, when the consumer has its queues."""
        if self._cpu_queue not in consumer.app.amqp.queues.consume_from:
            return
        self._standing_in = self._gpu_queue in consumer.app.amqp.queues.consume_from
        self._timer = consumer.timer.call_repeatedly(ANNOUNCEMENT_INTERVAL_S, self._check, (consumer,))

    def stop(self, consumer: Consumer) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, consumer: Consumer) -> None:
        try:
            is_ready = is_gpu_ready(live_workers(self._redis), self._names)
        except RedisError as error:
            log.warning("it is unknown whether a GPU worker is ready, the queues stay as they are: %s", error)
            return
        if is_ready:
            self._last_ready = time.monotonic()
        stand_in = not is_ready and time.monotonic() - self._last_ready >= self._grace_s
        if stand_in and not self._standing_in:
            text = "no GPU worker was ready for %s s (KRONOS_GPU_GRACE_S): taking jobs from queue %s too"
            log.warning(text, self._grace_s, self._gpu_queue)
            consumer.add_task_queue(self._gpu_queue)
        elif self._standing_in and not stand_in:
            log.info("a GPU worker is ready: leaving queue %s to it", self._gpu_queue)
            consumer.cancel_task_queue(self._gpu_queue)
        self._standing_in = stand_in
