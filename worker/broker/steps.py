"""The steps of Celery's consumer that serve messages. Celery calls ``start`` at each (re)connection."""

import logging
import threading
import time
import uuid
from importlib.metadata import version
from typing import Final

import kombu
from celery import bootsteps
from redis.exceptions import RedisError

from kronos_client.redis.queues import foreign_bindings
from worker.broker import transport
from worker.broker.claims import RENEWALS_PER_TIMEOUT, Claims, renewal_interval_s
from worker.broker.connecting import redis_of
from worker.broker.consuming import rounds
from worker.broker.queue_watch import call_soon
from worker.celery_types import Consumer
from worker.settings import get_settings

log = logging.getLogger(__name__)

MAX_INTERVAL_S: Final = 1.0
EVENTS_INTERVAL_S: Final = 0.05
MAX_EVENTS: Final = 500
"""Events in one message, which is sent after ``EVENTS_INTERVAL_S`` at the latest while Celery's loop runs."""
AFTER: Final = ("celery.worker.consumer.tasks:Tasks",)


class TransportCheck(bootsteps.StartStopStep):
    """Ends the worker at its first connection if kombu does not use our transport as it must."""

    requires = AFTER
    _is_checked = False

    def start(self, consumer: Consumer) -> None:
        if self._is_checked:
            return
        if (problem := problem_of(consumer.app.connection_for_read())) is not None:
            log.critical(
                "the broker transport does not work with kombu %s: %s. Install a version that pyproject.toml "
                "allows, and leave broker_transport as it is", version("kombu"), problem
            )  # fmt: skip
            raise SystemExit(1)
        self._is_checked = True


def problem_of(connection: kombu.Connection) -> str | None:
    """Why a worker must not take messages by this connection: it consumes a queue that does not exist."""
    queue = kombu.Queue(f"kronos.check.{uuid.uuid4().hex}")
    with connection:
        channel = connection.channel()
        kombu.Consumer(channel, [queue], on_message=log.debug, auto_declare=False).consume()
        connection.transport.cycle.on_poll_start()  # type: ignore[attr-defined]
        if not isinstance(channel, transport.Channel) or not isinstance(channel.qos, transport.QoS):
            return f"the channel is a {type(channel).__module__}.{type(channel).__qualname__}"
        if channel.num_takes != 1 or channel._queue_cycle.consume(1):
            return "it takes messages past the worker's scripts"
    return None


class EventBuffer(bootsteps.StartStopStep):
    """Sends many events in one message. Celery (5.7) sends 24, and in each round of its event loop."""

    requires = ("celery.worker.consumer.events:Events",)

    def start(self, consumer: Consumer) -> None:
        hub, self._is_due = consumer.hub, False

        def flush() -> None:
            self._is_due = False
            if consumer.event_dispatcher:
                consumer.event_dispatcher.flush()

        def flush_soon() -> None:  # on any thread
            if not self._is_due:
                self._is_due = True
                call_soon(hub, lambda: hub.call_later(EVENTS_INTERVAL_S, flush))

        consumer.event_dispatcher.buffer_limit = MAX_EVENTS
        consumer.event_dispatcher.on_send_buffered = flush_soon


class ClaimRenewal(bootsteps.StartStopStep):
    """Renews this process's messages and claims, and puts back messages that no worker renews.

    It has its own thread: jobs still run while Celery connects again, and after its event loop has ended.
    Then this thread stands in for the loop: it goes on with the jobs, stores outcomes, and bounds the time.
    """

    requires = AFTER

    def __init__(self, parent: Consumer, **kwargs: object) -> None:
        super().__init__(parent, **kwargs)
        self._timeout_s = float(get_settings().visibility_timeout_s)
        self._thread = threading.Thread(target=self._keep, name="kronos-claims", daemon=True)
        self._renewal_due = 0.0
        self._claims: Claims
        self._consumer: Consumer

    def start(self, consumer: Consumer) -> None:
        self._consumer, self._claims = consumer, consumer.controller.claims
        if not self._thread.is_alive():
            self._thread.start()

    def _keep(self) -> None:
        while True:
            tick_s = min(MAX_INTERVAL_S, self._timeout_s / RENEWALS_PER_TIMEOUT / 2)
            due_in_s = self._renewal_due - time.monotonic()
            time.sleep(min(tick_s, due_in_s) if due_in_s > 0 else tick_s)
            self.keep()

    def keep(self) -> None:
        """Do what is due. A renewal that fails stays due."""
        try:
            if time.monotonic() >= self._renewal_due:
                renewed_at = time.monotonic()
                self._claims.renew(*transport.held_deliveries())
                self._renewal_due = renewed_at + renewal_interval_s(self._timeout_s)
                if num_restored := transport.message_consumer().deliveries.restore_overdue():
                    log.info("delivering %d messages again: their workers no longer renew them", num_restored)
            self._claims.on_tick()
            rounds.run(unless_within_s=MAX_INTERVAL_S)
        except RedisError as error:
            log.warning("claims on running jobs could not be renewed, trying again: %s", error)
        except Exception:  # the next renewal must be tried
            log.exception("claims could not be renewed because of a defect, trying again")
        self._consumer.controller.on_tick()


class QueueWatcher(bootsteps.StartStopStep):
    """Has Celery's event loop read the connection on which Redis names changed queues."""

    requires = AFTER

    def __init__(self, parent: Consumer, **kwargs: object) -> None:
        super().__init__(parent, **kwargs)
        settings = get_settings()
        self._queues = settings.queue_names.of_role(settings.role)
        self._redis = redis_of(settings.redis_url.get_secret_value())

    def start(self, consumer: Consumer) -> None:
        messages = transport.message_consumer()
        messages.wake_by(lambda: call_soon(consumer.hub))
        messages.deliveries.attach(consumer.hub)
        for binding in foreign_bindings(self._redis, self._queues):
            log.warning("%s, perhaps by another app; then set KRONOS_QUEUE_PREFIX", binding)

    def stop(self, consumer: Consumer) -> None:
        transport.message_consumer().deliveries.attach(None)
