"""The worker's broker transport: kombu's Redis transport, with jobs taken and acknowledged by scripts.

``Transport`` takes messages with the scripts of ``deliveries.py``, and gives Celery only messages that it can
read. kombu itself serves the queues whose messages need no acknowledgement, such as replies to control
commands.

``broker_transport`` selects this transport. kombu is not changed: other apps in this process keep theirs.

It overrides what kombu 5.7 does not document. When a worker starts, ``steps.TransportCheck`` proves that
kombu calls the methods overridden here.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from celery.worker import state
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES, redis, virtual
from redis.exceptions import RedisError, ResponseError

from kronos_client.contract.names import TASK_ROLES
from kronos_client.redis.queues import DELIVERY_KEYS, FEED, waiting_keys, with_feeds
from worker.app import app
from worker.broker.connecting import Client, primary_options, redis_of
from worker.broker.consuming import MessageConsumer, rounds
from worker.broker.deliveries import Deliveries, Delivery
from worker.broker.messages import TaskMessage
from worker.broker.queue_watch import QueueWatch
from worker.broker.result_backend import CodedRedisBackend
from worker.broker.service_order import ALL_ROOM, NO_ROOM, Rooms
from worker.settings import get_settings

log = logging.getLogger(__name__)

HEADER_BYTES: Final = 2**20
"""Bytes of a message in addition to its job, which is in base64."""
TRANSPORT: Final = "kronos"
"""The value of ``broker_transport``; Celery shows it as the scheme of the broker's URL."""


@cache
def message_consumer() -> MessageConsumer:
    """The consumer of this process."""
    settings = get_settings()
    max_bytes = settings.max_message_bytes * 4 // 3 + HEADER_BYTES
    url = settings.redis_url.get_secret_value()
    queues = [name for queue in settings.queue_names.of_role(settings.role) for name in with_feeds(queue)]
    lists = [key for queue in queues for key in waiting_keys(queue)]
    deliveries = Deliveries(
        redis_of(url),
        DELIVERY_KEYS[settings.role],
        timeout_s=settings.visibility_timeout_s,
        max_bytes=max_bytes,
        watch=QueueWatch(url, lists, lambda: message_consumer().notified.set()),
    )
    return MessageConsumer(deliveries, max_bytes, backend().outcomes)


def backend() -> CodedRedisBackend:
    """The result backend of this process, which ends its jobs."""
    return app.backend  # type: ignore[return-value]


class QoS(redis.QoS):
    """Accounts for the messages that this process holds.

    Celery acknowledges a message after every attempt to store its outcome. That changes only what is held
    here: the script that stores the outcome removes the message, and if it did not, it is delivered again.
    """

    channel: "Channel"

    def can_consume(self) -> bool:
        return bool(self.rooms())

    def rooms(self) -> Rooms:
        """Which further jobs this process has room for."""
        has_room = super().can_consume() and backend().outcomes.has_room
        return self.channel.rooms() if has_room else NO_ROOM

    def append(self, message: object, delivery_tag: str) -> None:
        virtual.QoS.append(self, message, delivery_tag)  # Redis noted it when it was taken

    def ack(self, delivery_tag: str) -> None:
        virtual.QoS.ack(self, delivery_tag)
        if message_consumer().deliveries.is_full:
            message_consumer().notify()  # the next job may be taken only now

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        consumer = message_consumer()
        try:
            (consumer.requeue if requeue else consumer.reject)(delivery_tag)
        except RedisError as error:
            log.warning("a message could not be put back or buried; it is delivered again: %s", error)
        finally:
            self.ack(delivery_tag)

    def restore_visible(self, *_args: object, **_kwargs: object) -> None:
        """Nothing: ``ClaimRenewal`` does it. Celery calls this on its event loop, which a job may block."""


class Channel(redis.Channel):
    """A channel that serves by script all queues whose messages need an acknowledgement."""

    QoS = QoS
    qos: Any
    _queue_cycle: Any
    _disconnect_pools: Callable[[], None]
    _close_clients: Callable[[], None]
    # A closing channel must not requeue jobs that still run here: they would be computed twice.
    do_restore = False

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._scripted: dict[str, None] = {}  # ordered
        self.rooms: Callable[[], Rooms] = lambda: ALL_ROOM
        self.num_takes = 0
        super().__init__(*args, **kwargs)

    @property
    def scripted_queues(self) -> list[str]:
        """The queues whose messages are taken by script, in the order in which they were added."""
        active = self.active_queues
        return [queue for queue in self._scripted if queue in active]

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        if no_ack:
            self._scripted.pop(queue, None)
        else:
            self._scripted[queue] = None
        return super().basic_consume(queue, no_ack, *args, **kwargs)

    def _update_queue_cycle(self) -> None:
        self._queue_cycle.update([queue for queue in self.active_queues if queue not in self._scripted])

    def _get_client(self) -> type[Client]:
        return Client

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        """Add what is needed behind Sentinel: kombu has a transport of its own for it."""
        options = primary_options()
        if options:
            self.connection_class = self.connection_class_ssl = options.pop("connection_class")
        return dict(super()._connparams(asynchronous)) | options  # type: ignore[misc]

    def _queue_bind(self, exchange: str, *binding: object) -> None:
        """Note a binding in Redis, if it takes it: senders note it too, and no worker reads it."""
        try:
            super()._queue_bind(exchange, *binding)  # type: ignore[misc]
        except ResponseError as error:  # such as a full Redis, whose jobs only workers can take away
            log.warning("the binding to exchange %r is not noted, going on without: %s", exchange, error)

    def close(self) -> None:
        try:
            super().close()
        except RedisError as error:  # the transport would leave its other channels open
            log.warning("a channel could not be closed in order: %s", error)
            self._disconnect_pools()
            self._close_clients()
            virtual.Channel.close(self)

    def take(self) -> None:
        """Hand over waiting messages while there is room."""
        self.num_takes += 1
        consumer, num_held = message_consumer(), lambda: len(self.qos._delivered) - len(self.qos._dirty)
        queues = [name for queue in self.scripted_queues for name in with_feeds(queue)]
        consumer.take(queues, self.qos.rooms, self._hand_over, num_held)

    def _hand_over(self, delivery: Delivery, queue: str, step: int, message: TaskMessage) -> None:
        info = {"exchange": "", "routing_key": queue}
        message.payload["properties"] |= {
            "delivery_tag": delivery.tag,
            "priority": step,
            "delivery_info": info,
            "num_bytes": delivery.num_bytes,
        }
        try:
            self.connection._deliver(message.payload, queue.removesuffix(FEED))
        except BaseException:  # no trace may stay of a message that Celery failed to receive
            if delivery.tag in self.qos._delivered:
                virtual.QoS.ack(self.qos, delivery.tag)
            for request in _members(state.reserved_requests):
                if request.message.delivery_tag == delivery.tag:
                    state.task_ready(request)
            raise


class Poller(redis.MultiChannelPoller):
    """kombu's poller. Celery's event loop calls it before it waits."""

    def on_poll_start(self) -> None:
        consumer = message_consumer()
        consumer.is_awake = True
        super().on_poll_start()
        consumer.is_awake = False  # a job that changes from now on may need another round
        rounds.run()

    def _register_BRPOP(self, channel: Channel) -> None:
        if channel.scripted_queues:
            channel.take()
        if set(channel.active_queues).difference(channel.scripted_queues):
            super()._register_BRPOP(channel)  # type: ignore[misc]


class Transport(redis.Transport):
    """kombu's Redis transport with our own channels and poller.

    Celery connects again after ``connection_errors``. After any other error it ends the worker.
    """

    Channel = Channel
    connection_errors = (*redis.Transport.connection_errors, RedisError, OperationalError)
    cycle: Poller

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()


TRANSPORT_ALIASES[TRANSPORT] = f"{__name__}:{Transport.__name__}"


def held_deliveries() -> tuple[dict[str, str], set[str]]:
    """The deliveries that Celery still holds in this process.

    A message that ended but could not be acknowledged is not held: it must be delivered again.

    Returns:
        For running jobs that have a claim, the job's id by the delivery's tag; and the other tags.
    """
    # Not state.requests, which has one entry per job id: a job may have been delivered twice.
    running = _members(state.active_requests)
    claims = {request.message.delivery_tag: request.id for request in running if request.name in TASK_ROLES}
    received = [*_members(state.reserved_requests), *running]
    return claims, {request.message.delivery_tag for request in received} - claims.keys()


def _members(requests: Any) -> list[Any]:
    """Copy a set that other threads may change meanwhile."""
    while True:
        try:
            return list(requests)
        except RuntimeError:  # it changed during the iteration
            continue
