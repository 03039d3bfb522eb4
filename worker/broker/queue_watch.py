"""The connection on which a worker takes messages, and on which Redis names the queues that change.

Redis sends such invalidation messages for client-side caches (CLIENT TRACKING in broadcasting mode, Redis 6).
Celery's blocking pop would take a message in order to notice it, and a worker that is killed at that moment
would lose it.
"""

import logging
from collections.abc import Callable, Collection
from typing import Any, Final

from kombu.asynchronous import Hub
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from kronos_client.redis.connection import connect

log = logging.getLogger(__name__)

UNTRACKED_INTERVAL_S: Final = 0.05
"""Seconds between two polls if Redis sends no invalidation messages."""
AGAIN_S: Final = 0.05
"""Seconds from a take that emptied a list to the next take, unless Redis names another change before."""


class QueueWatch:
    """Calls ``notify`` whenever one of these keys may have changed, but by a take that left its list empty.

    For use on the thread of Celery's event loop, which reads the connection as soon as it is attached. It is
    made by the first take, and after a loss by the next one.
    """

    def __init__(self, url: str, keys: Collection[str], notify: Callable[[], object]) -> None:
        self._url = url
        self._keys = {key.encode() for key in keys}
        self._notify = notify
        self._client: Redis | None = None
        self._hub: Hub | None = None
        self._reader = -1  # the connection's descriptor while the loop reads it
        self._polls: Any = None
        self._is_refused = False
        self._emptied = b""
        self._num_takes = 0

    def client(self) -> Redis:
        """The client for takes.

        Raises:
            RedisError: There is no connection.
        """
        if self._client is None:
            try:
                self._client = self._connected(3)
            except ResponseError as error:
                self._refused(error)
                self._client = self._connected(2)
        return self._client

    def took(self, emptied: bytes) -> None:
        """Note a take, and the list that it took from if no list has further messages."""
        self._num_takes += 1
        self._emptied = emptied
        self._read()  # what came with the answer would not wake the loop

    def attach(self, hub: Hub | None) -> None:
        """Have this event loop read the connection; None when it ends."""
        self._not_read_by_loop()
        if self._polls is not None:
            self._polls.cancel()
            self._polls = None
        self._hub = hub
        if self._client is not None:
            self._read_by_loop(self._client.connection)

    def _connected(self, protocol: int) -> Redis:
        self._pool = connect(self._url, decode_responses=False, protocol=protocol)
        client: Redis = self._pool.client()  # type: ignore[no-untyped-call]
        connection: Any = client.connection
        connection.register_connect_callback(self._on_connect)
        self._on_connect(connection)
        return client

    def _on_connect(self, connection: Any) -> None:
        """Subscribe. redis-py calls it at each connection, before the command that needs it."""
        if connection.get_protocol() == 3:
            # As in redis-py's own cache. Without a handler redis-py drops the messages.
            connection._parser.set_invalidation_push_handler(self._on_push)
            prefixes = [word for prefix in self._prefixes() for word in (b"PREFIX", prefix)]
            connection.send_command("CLIENT", "TRACKING", "ON", "BCAST", *prefixes)
            try:
                connection.read_response()
            except ResponseError as error:  # forbidden, or unknown to this server
                self._refused(error)
        self._read_by_loop(connection)
        self._notify()  # for what changed before the subscription

    def _refused(self, error: ResponseError) -> None:
        if not self._is_refused:
            log.warning("Redis sends no invalidation messages, polling the queues instead: %s", error)
        self._is_refused = True

    def _read_by_loop(self, connection: Any) -> None:
        if self._hub is None or not connection.is_connected:
            return
        self._not_read_by_loop()
        self._reader = connection._sock.fileno()
        self._hub.add_reader(self._reader, self._read)
        if self._is_refused and self._polls is None:
            self._polls = self._hub.call_repeatedly(UNTRACKED_INTERVAL_S, self._notify)

    def _not_read_by_loop(self) -> None:
        if self._hub is not None and self._reader >= 0:
            self._hub.remove(self._reader)
            self._reader = -1

    def _read(self) -> None:
        connection: Any = None if self._client is None else self._client.connection
        try:
            while connection is not None and connection.is_connected and connection.can_read(timeout=0):
                connection.read_response(push_request=True)
        except (RedisError, OSError):
            self._not_read_by_loop()
            connection.disconnect()
            self._notify()  # the take connects again, or raises what Celery's consumer handles

    def _on_push(self, push: list[Any]) -> list[Any]:
        """Redis names keys that changed together, or none if the database was flushed."""
        changed = set(self._keys if push[1] is None else self._keys.intersection(push[1]))
        if self._emptied in changed and self._hub is not None:
            # Our take changed it, and perhaps a sender in the same moment.
            changed.remove(self._emptied)
            self._emptied, take, hub = b"", self._num_takes, self._hub

            def notify() -> None:
                if self._num_takes == take:
                    self._notify()

            # The loop may already have computed how long it will wait in this round.
            call_soon(hub, lambda: hub.call_later(AGAIN_S, notify))
        if changed:
            self._notify()
        return push

    def _prefixes(self) -> list[bytes]:
        """The keys without those that start with another key: Redis refuses overlapping prefixes."""
        return [key for key in sorted(self._keys) if not any(map(key.startswith, self._keys - {key}))]


def call_soon(hub: Hub, call: Callable[[], object] = lambda: None) -> None:
    """Have Celery's event loop make this call, and a round, soon. May be called on any thread.

    The loop of kombu 5.7 does not wake for a call from its own thread, but waits for up to a second.
    """
    hub._loop_thread = None  # type: ignore[attr-defined]  # else it is no call from another thread
    hub.call_soon(call)
