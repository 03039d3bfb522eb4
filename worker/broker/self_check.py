"""Checks that the installed kombu works as the broker transport needs it."""

import logging
import uuid
from importlib.metadata import version
from typing import Any

import kombu

from worker.broker.transport import LEANS_ON, Channel, QoS

log = logging.getLogger(__name__)


class IncompatibleKombu(Exception):
    """kombu does not work as this transport needs it."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the broker transport does not work with kombu {version('kombu')}: {why}. Install a version "
            "that pyproject.toml allows, and leave broker_transport as it is"
        )


def check(connection: kombu.Connection) -> None:
    """Consume from a queue that does not exist, and check that kombu uses our classes.

    Raises:
        IncompatibleKombu: It does not, or has not all of ``LEANS_ON``.
    """
    needed = [(owner, name) for owner, names in LEANS_ON.items() for name in names.split()]
    missing = [f"{owner.__name__}.{name}" for owner, name in needed if not hasattr(owner, name)]
    if missing:
        raise IncompatibleKombu(f"it has no {', '.join(missing)}")
    queue = f"kronos.check.{uuid.uuid4().hex}"
    with connection:
        channel: Any = connection.channel()
        kombu.Consumer(channel, [kombu.Queue(queue)], on_message=log.debug, auto_declare=False).consume()
        transport: Any = connection.transport
        transport.cycle.on_poll_start()
        kind = type(channel)
        if not isinstance(channel, Channel) or not isinstance(channel.qos, QoS):
            raise IncompatibleKombu(f"the channel is a {kind.__module__}.{kind.__qualname__}")
        if channel.num_takes != 1 or channel._queue_cycle.consume(1):
            raise IncompatibleKombu("it takes messages past the worker's scripts")
