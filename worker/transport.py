"""The one file that leans on how kombu's Redis transport works; checked against kombu 5.7.0.

kombu keeps every message that is not acknowledged yet in a hash, and the moment of its delivery in a sorted
set. Whatever is older there than the visibility timeout, any worker delivers again: so jobs of a worker that
was killed come back, and so would a job that merely takes long. The heartbeat here renews the moments of all
jobs that this process runs or holds. That lets the timeout be short. Moments are those of each machine's own
clock, kombu's too: clocks must agree to within a fraction of the timeout.
"""

import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from celery import bootsteps
from celery.worker import state
from kombu.transport import virtual
from kombu.transport.redis import Channel, QoS
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from worker.celery_config import UNACKED_INDEX_KEYS, UNACKED_KEYS
from worker.connection import connect
from worker.settings import get_settings

log = logging.getLogger(__name__)

RENEWALS_PER_TIMEOUT: Final = 4
"""Three renewals in a row may be lost before a job is taken for abandoned."""


class OutlivingQoS(QoS):
    """Acknowledges and requeues also what was delivered on a channel that has been closed meanwhile.

    When Redis goes away under a running job, the job ends after its channel. kombu 5.7.0 then asks a
    transport that is gone for a connection, which ends the worker. What the job was delivered by is still
    there, so that is done over a connection of our own.
    """

    def ack(self, delivery_tag: str) -> None:
        if self.channel.closed:
            _forget(delivery_tag)
        else:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if not self.channel.closed:
            try:
                super().reject(delivery_tag, requeue=requeue)
            except ResponseError as error:  # Redis is full, or may not be written to
                log.warning("a job could not be put back, it comes by the visibility timeout: %s", error)
                virtual.QoS.ack(self, delivery_tag)  # else it counts as held for ever
        elif not requeue:
            _forget(delivery_tag)
        elif _is_sent_to_a_queue(delivery_tag):
            self.restore_by_tag(delivery_tag, client=_own_connection(), leftmost=True)
        # Else it comes back by the visibility timeout.


def outlive_connections() -> None:
    """Have this process's channels outlive a connection that is lost, as far as their messages go.

    kombu puts a closing channel's messages back on their queues at once. That ends the worker as above, and
    where it works, jobs that still run here are computed a second time elsewhere.
    """
    Channel.QoS = OutlivingQoS
    Channel.do_restore = False


def reuse_clients() -> None:
    """Have each of this process's channels keep one client, where kombu makes a new one for each command.

    Making one costs as much as the command. It holds no connection, but takes one from the channel's pool
    for each command: so one will do, for all threads.
    """
    Channel.conn_or_acquire = _conn_or_acquire  # type: ignore[method-assign, assignment]


@contextmanager
def _conn_or_acquire(channel: Any, client: Any = None) -> Iterator[Any]:
    if client is None:
        client = vars(channel).get("_kronos_client")
        if client is None or client.connection_pool is not channel.pool:  # a reconnect makes a new pool
            client = channel._kronos_client = channel._create_client()
    yield client


@cache
def _own_connection() -> Redis:
    return connect(get_settings().redis_url.get_secret_value())


def _unacked_key() -> str:
    return UNACKED_KEYS[get_settings().role]


def _unacked_index_key() -> str:
    return UNACKED_INDEX_KEYS[get_settings().role]


def _forget(delivery_tag: str) -> None:
    with _own_connection().pipeline() as pipe:
        pipe.zrem(_unacked_index_key(), delivery_tag)
        pipe.hdel(_unacked_key(), delivery_tag)
        pipe.execute()


def _is_sent_to_a_queue(delivery_tag: str) -> bool:
    """As Celery sends jobs. The queues of any other exchange are looked up on the channel's connection,
    and kombu drops a message whose queues it cannot look up."""
    held = _own_connection().hget(_unacked_key(), delivery_tag)
    if held is None:  # delivered again meanwhile
        return False
    _message, exchange, _routing_key = json.loads(held)
    return not exchange


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
        redis.zadd(_unacked_index_key(), moments, xx=True)


class DeliveryHeartbeat(bootsteps.StartStopStep):
    """Renews what this process holds, from the first connection until the process ends.

    On a thread of its own, since the consumer's may be busy (solo pool); and past the consumer's end, since
    running jobs are finished after it.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._interval_s = get_settings().visibility_timeout_s / RENEWALS_PER_TIMEOUT
        self._thread = threading.Thread(target=self._beat, name="kronos-deliveries", daemon=True)

    def start(self, consumer: Any) -> None:
        """Called at every (re)connection."""
        if not self._thread.is_alive():
            self._thread.start()

    def _beat(self) -> None:
        while True:
            time.sleep(self._interval_s)
            try:
                renew(_own_connection(), held_delivery_tags())
            except RedisError as error:
                log.warning("deliveries could not be renewed, trying again: %s", error)
            except Exception:  # the next renewal must be tried, whatever became of this one
                log.exception("deliveries could not be renewed, trying again")
