"""The one file that leans on how kombu's Redis transport works; checked against kombu 5.7.0.

kombu takes a message by a blocking pop and notes it as unacknowledged afterwards: a worker that is killed in
between loses it, and a message that cannot be read ends the worker. Here a worker's channels take by the
scripts of ``messaging/deliveries.py``, and give Celery only what it can read. What Celery does with it
afterwards, acknowledging and rejecting, goes by the same scripts over a connection of our own, whatever
became of the channel: a job may end after it, when Redis was away meanwhile.

The heartbeat renews all that this process runs or holds. That lets the visibility timeout be short.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from celery import bootsteps, states
from celery.worker import state
from kombu.transport import virtual
from kombu.transport.redis import Channel, MultiChannelPoller, QoS
from redis.exceptions import RedisError

from kronos_client.contract.errors import JobError
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import JobRecords
from kronos_client.redis.queues import QUEUES, ROLE_QUEUES, list_keys
from worker.app import app
from worker.broker.consuming import MessageConsumer
from worker.broker.deliveries import Deliveries, Delivery, look_interval_s
from worker.broker.messages import TaskMessage
from worker.broker.queue_watch import QueueWatch
from worker.config import UNACKED_INDEX_KEYS, UNACKED_KEYS
from worker.settings import get_settings

log = logging.getLogger(__name__)

HEADER_BYTES: Final = 2**20
"""What a message may take beside its job, which is in base64."""

DECODED: Final = "kronos.decoded"
"""In kombu's raw message: what its body was read as, so that it is not read again."""


@cache
def message_consumer() -> MessageConsumer:
    """This process's."""
    settings = get_settings()
    url = settings.redis_url.get_secret_value()
    max_bytes = settings.max_message_bytes * 4 // 3 + HEADER_BYTES
    deliveries = Deliveries(
        connect(url, decode_responses=False),
        UNACKED_KEYS[settings.role],
        UNACKED_INDEX_KEYS[settings.role],
        timeout_s=settings.visibility_timeout_s,
        max_bytes=max_bytes,
        max_dead=settings.max_dead_messages,
    )
    records = JobRecords(connect(url), settings.result_ttl_s)

    def answer(job_id: str, error: JobError) -> bool:
        backend: Any = app.backend
        is_stored = backend.finish(records, SimpleNamespace(id=job_id), states.FAILURE, error)
        return bool(is_stored or not records.is_leased(job_id))

    return MessageConsumer(deliveries, max_bytes, answer)


def put_back(delivery_tag: str, delay_s: float) -> None:
    """Have a message delivered again after this time. Celery may then reject it, to have it requeued."""
    message_consumer().put_back(delivery_tag, delay_s)


class ScriptedQoS(QoS):
    """Acknowledges, requeues and rejects by scripts.

    Where Redis is away the channel forgets the message all the same, else it counts as held for ever. As
    nobody renews it, it is delivered again, and found to have its outcome.
    """

    def append(self, message: Any, delivery_tag: str) -> None:
        virtual.QoS.append(self, message, delivery_tag)  # Redis knows of it since it was taken

    def ack(self, delivery_tag: str) -> None:
        self._end(delivery_tag, message_consumer().deliveries.forget)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        consumer = message_consumer()
        self._end(delivery_tag, consumer.requeue if requeue else consumer.reject)

    def restore_visible(self, *_args: Any, **_kwargs: Any) -> None:
        """The heartbeat does: Celery's event loop, which calls this, is busy with a job in the solo pool."""

    def _end(self, delivery_tag: str, how: Callable[[str], object]) -> None:
        try:
            how(delivery_tag)
        except RedisError as error:
            log.warning("a message could not be ended, it is delivered again: %s", error)
        finally:
            virtual.QoS.ack(self, delivery_tag)


class ReadMessage(virtual.Message):
    """kombu's message, of which the body has been read."""

    def __init__(self, payload: dict[str, Any], channel: Any = None, **kwargs: Any) -> None:
        decoded = payload.pop(DECODED, None)
        super().__init__(payload, channel=channel, **kwargs)
        self._decoded_cache = decoded


def install() -> None:
    """Have this process's channels work as this file says."""
    Channel.QoS = ScriptedQoS
    Channel.Message = ReadMessage
    # Else a closing channel puts back what still runs here, and it is computed a second time elsewhere.
    Channel.do_restore = False
    # Celery's event loop calls it before it waits, where a channel that consumes has room.
    MultiChannelPoller._register_BRPOP = _take_into  # type: ignore[attr-defined]
    Channel.conn_or_acquire = _conn_or_acquire  # type: ignore[method-assign, assignment]


_register_blocking_pop = MultiChannelPoller._register_BRPOP  # type: ignore[attr-defined]


def _take_into(poller: MultiChannelPoller, channel: Any) -> None:
    queues = channel._queue_cycle.consume(len(channel.active_queues))
    if not set(QUEUES).issuperset(queues):
        # Not of jobs: workers read each other's answers to control commands from queues of their own.
        _register_blocking_pop(poller, channel)
        return

    def hand_over(delivery: Delivery, queue: str, step: int, message: TaskMessage) -> None:
        properties = message.payload["properties"] | {
            "delivery_tag": delivery.tag,
            "priority": step,
            "delivery_info": {"exchange": "", "routing_key": queue},
        }
        raw = message.payload | {"properties": properties, DECODED: message.arguments}
        try:
            channel.connection._deliver(raw, queue)
        except BaseException:
            _let_go(channel, delivery.tag)
            raise

    message_consumer().take(queues, channel.qos.can_consume, hand_over)


def _let_go(channel: Any, delivery_tag: str) -> None:
    """Of what Celery began to receive and could not, nothing must stay."""
    if delivery_tag in channel.qos._delivered:
        virtual.QoS.ack(channel.qos, delivery_tag)
    for request in _members(state.reserved_requests):
        if request.message.delivery_tag == delivery_tag:
            state.task_ready(request)


@contextmanager
def _conn_or_acquire(channel: Any, client: Any = None) -> Iterator[Any]:
    """One client for all of a channel's commands, where kombu makes a new one for each.

    Making one costs as much as the command. It holds no connection, but takes one from the channel's pool
    for each command: so one will do, for all threads.
    """
    if client is None:
        client = vars(channel).get("_kronos_client")
        if client is None or client.connection_pool is not channel.pool:  # a reconnect makes a new pool
            client = channel._kronos_client = channel._create_client()
    yield client


def held_delivery_tags() -> set[str]:
    """Deliveries that this process has not come to an end with, by Celery's own account.

    What ended but could not be acknowledged is not among them: it shall be delivered again.
    """
    # Not state.requests, which has one for each id: a job may have been delivered twice.
    requests: list[Any] = [*_members(state.reserved_requests), *_members(state.active_requests)]
    return {request.message.delivery_tag for request in requests}


def _members(requests: Any) -> list[Any]:
    """Of a set that other threads change meanwhile."""
    while True:
        try:
            return list(requests)
        except RuntimeError:  # it grew while it was gone through
            continue


class DeliveryHeartbeat(bootsteps.StartStopStep):
    """Renews what this process holds, and puts back what nobody does, until the process ends.

    On a thread of its own, since the consumer's may be busy (solo pool); and past the consumer's end, since
    running jobs are finished after it.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._interval_s = look_interval_s(get_settings().visibility_timeout_s)
        self._thread = threading.Thread(target=self._beat, name="kronos-deliveries", daemon=True)

    def start(self, consumer: Any) -> None:
        """Called at every (re)connection."""
        if not self._thread.is_alive():
            self._thread.start()

    def _beat(self) -> None:
        while True:
            time.sleep(self._interval_s)
            deliveries = message_consumer().deliveries
            try:
                deliveries.renew(held_delivery_tags())
                if num_restored := deliveries.restore_overdue():
                    log.info("%d messages were renewed by nobody: they are delivered again", num_restored)
            except RedisError as error:
                log.warning("deliveries could not be renewed, trying again: %s", error)
            except Exception:  # the next renewal must be tried, whatever became of this one
                log.exception("deliveries could not be renewed, trying again")


class QueueBell(bootsteps.StartStopStep):
    """Has Celery's event loop go round when there may be messages."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        settings = get_settings()
        keys = [key for queue in ROLE_QUEUES[settings.role] for key in list_keys(queue)]
        redis = connect(settings.redis_url.get_secret_value(), decode_responses=False, protocol=3)
        self._watch = QueueWatch(redis, keys, lambda: message_consumer().ring())
        self._is_started = False

    def start(self, consumer: Any) -> None:
        """Called at every (re)connection."""
        if consumer.hub is not None:
            message_consumer().wake_by(lambda: consumer.hub.call_soon(_nothing))
        if not self._is_started:
            self._is_started = True
            self._watch.start()


def _nothing() -> None:
    """A callback that makes the loop go round."""
