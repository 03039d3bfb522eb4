"""How a worker connects to the broker: without a limit of tries, at intervals that differ between workers."""

import logging
import random
import threading
import time
from functools import cache
from typing import Any, Final

import celery.app.control
from celery import bootsteps
from celery.app.amqp import AMQP
from celery.worker.state import maybe_shutdown
from kombu import pidbox
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import RedisError

from kronos_client import celery_app
from kronos_client.redis.connection import REFUSED, connect, is_refused
from kronos_client.redis.url import SentinelUrl
from worker.celery_types import Consumer
from worker.settings import get_settings

log = logging.getLogger(__name__)

MIN_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 2.0
"""Seconds between two tries. kombu's pauses grow to 30 s."""
STABLE_S: Final = 5.0
"""A connection that lived so long is replaced without a pause."""
POLL_S: Final = 0.1


@cache
def redis_of(url: str) -> Redis:
    """This process's connections to a Redis, in one pool; answers are bytes."""
    return connect(url, decode_responses=False, min_replicas=get_settings().redis_min_replicas)


def primary_options() -> dict[str, Any]:
    """What a connection of Celery's needs behind Sentinel; empty without it."""
    url = SentinelUrl.from_url(get_settings().redis_url.get_secret_value())
    if url is None:
        return {}
    from kronos_client.redis.sentinel import connection_options

    return connection_options(url)


class Connection(celery_app.Connection):
    """A connection with short pauses, which end when the worker is to shut down."""

    def switch(self, conn_str: str) -> None:
        """Go on with another URL, by the same transport.

        The scheme of the URL would choose kombu's own (5.7), which takes messages without our scripts.
        """
        transport = self.transport_cls
        super().switch(conn_str)
        self.transport_cls = transport

    def _ensure_connection(
        self, errback: Any = None, max_retries: Any = None, *_: Any, callback: Any = None, **options: Any
    ) -> Any:
        pause_s = random.uniform(MIN_PAUSE_S, MAX_PAUSE_S)
        options |= {"interval_start": pause_s / 3, "interval_step": pause_s / 3, "interval_max": pause_s}
        callback = callback or _end_if_asked

        def on_error(error: Exception, interval_s: float) -> None:
            if errback is not None:
                errback(type(error)(REFUSED) if is_refused(error) else error, interval_s)

        return super()._ensure_connection(on_error, max_retries, callback=callback, **options)


class Client(Redis):
    """A client whose pipelines are no transactions: a full Redis refuses every command in one."""

    def pipeline(self, transaction: bool = False, shard_hint: Any = None) -> Any:
        return super().pipeline(transaction, shard_hint)


class Amqp(AMQP):
    """Makes the app connect by our ``Connection``."""

    Connection = Connection


class Mailbox(pidbox.Mailbox):
    """Gives up a reply to a control command that Redis does not take after one more try.

    Celery (5.7) tries until Redis takes it, in the event loop, which neither takes jobs nor ends meanwhile.
    """

    def _publish_reply(self, *reply: Any, **options: Any) -> None:
        try:
            super()._publish_reply(*reply, retry_policy={"max_retries": 1, "interval_start": 0}, **options)
        except (OperationalError, RedisError) as error:
            log.warning("a control command stays without a reply: %s", error)


class Control(celery.app.control.Control):
    """Makes the app answer control commands by our ``Mailbox``."""

    Mailbox = Mailbox


class ConnectionPause(bootsteps.StartStopStep):
    """Waits before a worker connects again if its last connection failed soon, too.

    Redis may accept connections and refuse what a worker does first.
    """

    _stopped_at = float("-inf")

    def stop(self, consumer: Consumer) -> None:
        """Celery calls it when a connection failed, and at the end."""
        is_running = consumer.blueprint.state == bootsteps.RUN  # type: ignore[attr-defined]
        until = time.monotonic() + random.uniform(MIN_PAUSE_S, MAX_PAUSE_S)
        while is_running and self._stopped_at + STABLE_S > time.monotonic() < until:
            maybe_shutdown()
            time.sleep(POLL_S)
        self._stopped_at = time.monotonic()


def _end_if_asked() -> None:
    if threading.current_thread() is threading.main_thread():
        maybe_shutdown()
