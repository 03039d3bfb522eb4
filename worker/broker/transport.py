"""The worker's broker transport: kombu's Redis transport, with jobs taken and acknowledged by scripts.

kombu pops a message first and notes it as unacknowledged afterwards. A worker that is killed in between loses
it, and a message that cannot be read ends the worker. ``Transport`` takes messages by the scripts of
``deliveries.py`` instead, and gives Celery only what it can read. Queues whose messages need no
acknowledgement, such as the replies to control commands, are kombu's own business.

The transport is chosen by ``broker_transport``, and nothing of kombu's is changed: other apps in this process
are not affected.

``LEANS_ON`` lists what this file uses of kombu and Celery beyond their documentation. It was tried with kombu
5.6.2 and 5.7.0. At the start of a worker, ``self_check.py`` proves that kombu calls what is overridden here.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from celery import states
from celery.worker import state
from kombu.transport import TRANSPORT_ALIASES, redis, virtual
from redis.exceptions import RedisError

from kronos_client.contract.errors import JobError
from kronos_client.contract.names import FINETUNE_TASK, FORECAST_TASK
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import JobStore
from worker.app import app
from worker.broker.consuming import MessageConsumer
from worker.broker.deliveries import Deliveries, Delivery
from worker.broker.messages import TaskMessage
from worker.config import UNACKED_INDEX_KEYS, UNACKED_KEYS
from worker.settings import get_settings

log = logging.getLogger(__name__)

HEADER_BYTES: Final = 2**20
"""What a message may take beside its job, which is in base64."""

DECODED: Final = "kronos.decoded"
"""In kombu's raw message: its body after parsing, so that it is parsed once."""

TRANSPORT: Final = "kronos"
"""The value of ``broker_transport``; Celery shows it as the scheme of the broker's URL."""


CLAIMED_TASKS: Final = frozenset((FORECAST_TASK, FINETUNE_TASK))

LEANS_ON: Final = (
    (redis.MultiChannelPoller, "on_poll_start", "calls _register_BRPOP of a channel with queues and room"),
    (redis.MultiChannelPoller, "_register_BRPOP", "waits for a message of Channel._queue_cycle"),
    (redis.Channel, "active_queues", "the queues that are consumed from, without those of broadcasts"),
    (redis.Channel, "_update_queue_cycle", "is called when a queue is added or cancelled"),
    (redis.Channel, "conn_or_acquire", "gives a client for a command"),
    (redis.Channel, "_create_client", "makes one on Channel.pool"),
    (redis.Channel, "pool", "is replaced when the connection is lost"),
    (virtual.Channel, "basic_consume", "adds a queue, and gives its messages to Message and QoS.append"),
    (virtual.Channel, "QoS", "the class that accounts for what a channel holds"),
    (virtual.Channel, "Message", "the class of its messages"),
    (virtual.Channel, "do_restore", "whether a closing channel requeues what is not acknowledged"),
    (virtual.QoS, "can_consume", "is asked before a message is taken"),
    (virtual.QoS, "append", "counts a message as held"),
    (virtual.QoS, "ack", "counts it as held no more, in any thread"),
    (virtual.QoS, "_delivered", "the messages that are held, by tag"),
    (virtual.Transport, "cycle", "the poller of a connection; Transport.__init__ makes it"),
    (virtual.Transport, "_deliver", "gives a raw message to the consumer of its queue"),
    (state, "reserved_requests", "what Celery has received; grows in other threads"),
    (state, "active_requests", "what runs"),
    (state, "task_ready", "takes a request out of both"),
)
"""Where it is defined, its name, and what it does."""


@cache
def job_store() -> JobStore:
    """The jobs' records and states, over a connection of this process."""
    settings = get_settings()
    redis = connect(settings.redis_url.get_secret_value())
    return JobStore(redis, settings.result_ttl_s, UNACKED_INDEX_KEYS[settings.role])


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

    def answer(job_id: str, error: JobError) -> bool:
        backend: Any = app.backend
        is_stored = backend.finish(job_store(), SimpleNamespace(id=job_id), states.FAILURE, error)
        return bool(is_stored or not job_store().is_claimed(job_id))

    return MessageConsumer(deliveries, max_bytes, answer)


def put_back(delivery_tag: str, delay_s: float) -> None:
    """Have a message delivered again after this time. Celery may then reject it, to have it requeued."""
    message_consumer().put_back(delivery_tag, delay_s)


class Message(virtual.Message):
    """kombu's message, with its body parsed already."""

    def __init__(self, payload: dict[str, Any], channel: Any = None, **kwargs: Any) -> None:
        decoded = payload.pop(DECODED, None)
        super().__init__(payload, channel=channel, **kwargs)
        self._decoded_cache = decoded


class QoS(redis.QoS):
    """Acknowledges, requeues and rejects by scripts, over a connection that outlives the channel.

    If Redis is away, the channel forgets the message all the same: otherwise it would count as held for ever.
    The message is delivered again when its claim has ended, and the job's outcome is there already.
    """

    channel: Any

    def can_consume(self) -> bool:
        return bool(super().can_consume() and self.channel.has_room())

    def append(self, message: Any, delivery_tag: str) -> None:
        virtual.QoS.append(self, message, delivery_tag)  # Redis has it noted since it was taken

    def ack(self, delivery_tag: str) -> None:
        self._end(delivery_tag, message_consumer().deliveries.forget)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        consumer = message_consumer()
        self._end(delivery_tag, consumer.requeue if requeue else consumer.reject)

    def restore_visible(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing: ``ClaimRenewal`` does it. Celery's event loop calls this, and may be busy with a job."""

    def _end(self, delivery_tag: str, how: Callable[[str], object]) -> None:
        try:
            how(delivery_tag)
        except RedisError as error:
            log.warning("a message could not be ended, it is delivered again: %s", error)
        finally:
            virtual.QoS.ack(self, delivery_tag)


class Channel(redis.Channel):
    """A channel whose queues are served by scripts, but for those that need no acknowledgement."""

    QoS = QoS
    Message = Message
    connection: Any
    qos: Any
    _create_client: Any
    _queue_cycle: Any
    # A closing channel must not requeue jobs that still run here: they would be computed twice.
    do_restore = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._scripted: dict[str, None] = {}  # ordered
        self._shared_client: Any = None
        self.has_room: Callable[[], bool] = lambda: True
        self.num_looks = 0
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

    def take(self) -> None:
        """Hand over the messages that wait, as far as there is room for them."""
        self.num_looks += 1
        message_consumer().take(self.scripted_queues, self.qos.can_consume, self._hand_over)

    def _hand_over(self, delivery: Delivery, queue: str, step: int, message: TaskMessage) -> None:
        properties = message.payload["properties"] | {
            "delivery_tag": delivery.tag,
            "priority": step,
            "delivery_info": {"exchange": "", "routing_key": queue},
        }
        raw = message.payload | {"properties": properties, DECODED: message.arguments}
        try:
            self.connection._deliver(raw, queue)
        except BaseException:
            self._let_go(delivery.tag)
            raise

    def _let_go(self, delivery_tag: str) -> None:
        """Remove all traces of a message that Celery began to receive and could not."""
        if delivery_tag in self.qos._delivered:
            virtual.QoS.ack(self.qos, delivery_tag)
        for request in _members(state.reserved_requests):
            if request.message.delivery_tag == delivery_tag:
                state.task_ready(request)

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """One client for all of a channel's commands; making one costs kombu as much as a command.

        It holds no connection, but takes one from the channel's pool for each command, in any thread.
        """
        if client is None:
            client = self._shared_client
            if client is None or client.connection_pool is not self.pool:  # a reconnect makes a new pool
                client = self._shared_client = self._create_client()
        yield client


class Poller(redis.MultiChannelPoller):
    """Celery's event loop calls it before it waits."""

    def _register_BRPOP(self, channel: Channel) -> None:
        if channel.scripted_queues:
            channel.take()
        if set(channel.active_queues).difference(channel.scripted_queues):
            super()._register_BRPOP(channel)  # type: ignore[misc]


class Transport(redis.Transport):
    """kombu's Redis transport with channels and a poller of our own."""

    Channel = Channel
    cycle: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()


TRANSPORT_ALIASES[TRANSPORT] = f"{__name__}:{Transport.__name__}"


def held_deliveries() -> tuple[dict[str, str], set[str]]:
    """The deliveries that this process has not ended, by Celery's own account.

    What ended but could not be acknowledged is not among them: it is to be delivered again.

    Returns:
        The job's id for the tag of each delivery whose job runs and has a claim; the tags of the others.
    """
    # Not state.requests, which has one for each id: a job may have been delivered twice.
    running = _members(state.active_requests)
    claims = {one.message.delivery_tag: one.id for one in running if one.name in CLAIMED_TASKS}
    received = [*_members(state.reserved_requests), *running]
    return claims, {one.message.delivery_tag for one in received} - claims.keys()


def _members(requests: Any) -> list[Any]:
    """Of a set that other threads change meanwhile."""
    while True:
        try:
            return list(requests)
        except RuntimeError:  # it grew during the iteration
            continue
