"""Hears from Redis when a queue's lists change, so that nobody has to ask all the time.

By what Redis has for client-side caches (CLIENT TRACKING in broadcasting mode, Redis 6): it names the keys
under a prefix that were written, whoever wrote them. Celery's blocking pop would hear of a message only by
taking it, and a worker that is killed just then loses it.
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
"""After so long without a word Redis is asked whether it is there."""

UNTRACKED_INTERVAL_S: Final = 0.05
"""How often to look where Redis does not tell."""

RECONNECT_INTERVAL_S: Final = 0.5


class QueueWatch:
    """Calls ``ring`` whenever one of these keys may have changed, from a thread of its own.

    Args:
        redis: speaks RESP3, and answers in bytes.
        keys: Redis keys.
    """

    def __init__(self, redis: Redis, keys: Collection[str], ring: Callable[[], object]) -> None:
        self._redis = redis
        self._keys = {key.encode() for key in keys}
        self._ring = ring
        self._thread = threading.Thread(target=self._watch, name="kronos-queues", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _watch(self) -> None:
        is_told = False
        while True:
            try:
                self._listen()
            except ResponseError as error:  # forbidden, or unknown to what stands in for Redis
                if not is_told:
                    log.warning("Redis does not tell of changes (%s): asking it all the time", error)
                is_told = True
                time.sleep(UNTRACKED_INTERVAL_S)
            except (RedisError, OSError):  # the consumer says so, and connects again
                time.sleep(RECONNECT_INTERVAL_S)
            except Exception:  # a worker that hears nothing takes jobs late; one without this thread, too
                log.exception("a defect in watching the queues, trying again")
                time.sleep(RECONNECT_INTERVAL_S)
            self._ring()

    def _listen(self) -> None:
        """Returns never; raises once the connection is lost."""
        connection: Any = self._redis.connection_pool.get_connection()
        try:
            # As redis-py's own cache does; without a handler what Redis tells is dropped.
            connection._parser.set_invalidation_push_handler(lambda push: push)
            prefixes = [word for prefix in self._prefixes() for word in (b"PREFIX", prefix)]
            connection.send_command("CLIENT", "TRACKING", "ON", "BCAST", *prefixes)
            connection.read_response()
            self._ring()  # for what changed while nobody listened
            while True:
                if self._concerns_us(_next_push(connection)):
                    self._ring()
        finally:
            connection.disconnect()
            self._redis.connection_pool.release(connection)

    def _prefixes(self) -> list[bytes]:
        """Such that none is the beginning of another, which Redis refuses."""
        return [key for key in sorted(self._keys) if not any(map(key.startswith, self._keys - {key}))]

    def _concerns_us(self, push: Any) -> bool:
        if not isinstance(push, list) or push[0] != b"invalidate":
            return False
        return push[1] is None or not self._keys.isdisjoint(push[1])  # None: the database was flushed


def _next_push(connection: Any) -> Any:
    """What Redis sends next; raises TimeoutError where it is not there any more."""
    try:
        return connection.read_response(push_request=True, timeout=QUIET_S, disconnect_on_error=False)
    except TimeoutError:
        connection.send_command("PING", check_health=False)
        return connection.read_response(push_request=True, timeout=QUIET_S)
