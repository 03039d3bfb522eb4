"""Subscribes to Redis's invalidation messages, to avoid polling the queues.

Redis sends them for client-side caches (CLIENT TRACKING in broadcasting mode, Redis 6). They name the keys
under a prefix that any client has written. Celery's blocking pop would take a message in order to notice it,
and a worker that is killed at that moment would lose it.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError, ResponseError, TimeoutError

log = logging.getLogger(__name__)

QUIET_S: Final = 25.0
"""Seconds without a message after which Redis is pinged."""
UNTRACKED_INTERVAL_S: Final = 0.05
"""Seconds between two polls if Redis sends no invalidation messages."""
RECONNECT_INTERVAL_S: Final = 0.5


class QueueWatch:
    """Calls ``notify`` on its own thread whenever one of these keys of Redis may have changed.

    ``redis`` must answer in bytes, by RESP3.
    """

    def __init__(self, redis: Redis, keys: Collection[str], notify: Callable[[], object]) -> None:
        self._redis = redis
        self._keys = {key.encode() for key in keys}
        self._notify = notify
        self._thread = threading.Thread(target=self._watch, name="kronos-queues", daemon=True)

    def start(self) -> None:
        """Start once; later calls do nothing."""
        if not self._thread.is_alive():
            self._thread.start()

    def _watch(self) -> None:
        is_logged = False
        while True:
            try:
                self._listen()
            except ResponseError as error:  # forbidden, or unknown to this server
                if not is_logged:
                    log.warning("Redis sends no invalidation messages, polling the queues instead: %s", error)
                is_logged = True
                time.sleep(UNTRACKED_INTERVAL_S)
            except (RedisError, OSError):  # the consumer logs it and reconnects
                time.sleep(RECONNECT_INTERVAL_S)
            except Exception:  # without this thread the worker would take jobs late
                log.exception("watching the queues failed because of a defect, trying again")
                time.sleep(RECONNECT_INTERVAL_S)
            self._notify()

    def _listen(self) -> None:
        """Run until the connection is lost, then raise."""
        connection: Any = self._redis.connection_pool.get_connection()
        try:
            # As in redis-py's own cache. Without a handler redis-py drops the messages.
            connection._parser.set_invalidation_push_handler(lambda push: push)
            prefixes = [word for prefix in self._prefixes() for word in (b"PREFIX", prefix)]
            connection.send_command("CLIENT", "TRACKING", "ON", "BCAST", *prefixes)
            connection.read_response()
            self._notify()  # for what changed before the subscription
            while True:
                if self._concerns_us(_next_push(connection)):
                    self._notify()
        finally:
            connection.disconnect()
            self._redis.connection_pool.release(connection)

    def _prefixes(self) -> list[bytes]:
        """The keys without those that start with another key: Redis refuses overlapping prefixes."""
        return [key for key in sorted(self._keys) if not any(map(key.startswith, self._keys - {key}))]

    def _concerns_us(self, push: Any) -> bool:
        if not isinstance(push, list) or push[0] != b"invalidate":
            return False
        return push[1] is None or not self._keys.isdisjoint(push[1])  # None: the database was flushed


def _next_push(connection: Any) -> Any:
    """The next push from Redis. Raises TimeoutError if Redis no longer answers."""
    try:
        return connection.read_response(push_request=True, timeout=QUIET_S, disconnect_on_error=False)
    except TimeoutError:
        connection.send_command("PING", check_health=False)
        return connection.read_response(push_request=True, timeout=QUIET_S)
