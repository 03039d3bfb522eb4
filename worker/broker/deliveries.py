"""Messages that workers have taken off the queues and not acknowledged yet, in Redis.

Each step is one script. A message is either on its list or noted as taken, so a process that dies in between
loses none. All times are by Redis's clock.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from kombu.asynchronous import Hub
from redis import Redis

from kronos_client.redis.queues import LARGE_PREFIX, TAKEN_KEY, DeliveryKeys
from kronos_client.redis.scripts import read_script
from worker.broker.claims import MAX_INTERVAL_S, renewal_interval_s
from worker.broker.queue_watch import QueueWatch

SCRIPTS: Final = Path(__file__).parent / "lua"

SHOWN_BYTES: Final = 2048
"""Bytes kept of each end of a message that is too large, and of a buried message."""
MAX_TAKEN: Final = 16
"""Messages in one take; more make it no cheaper, and leave less to other workers."""
MAX_RESTORED: Final = 100


@dataclass(frozen=True)
class Delivery:
    """A taken message.

    Attributes:
        tag: Names this delivery; a message that is taken again gets another tag.
        source: The list that held the message: one queue's list for one priority.
        message: The whole message, or its two ends if it is too large.
        others: The lists that had further messages to take.
    """

    tag: str
    source: str
    num_bytes: int
    message: bytes
    is_whole: bool = True
    others: frozenset[str] = frozenset()


class Asked(NamedTuple):
    """What a worker asks for of one list.

    Attributes:
        min_age_s: Seconds that a job must have waited there, if it is a second list.
    """

    min_age_s: float = 0.0
    max_messages: int = 1


class Deliveries:
    """Takes messages and accounts for them, in keys that all workers of a role share.

    Args:
        redis: Connection that answers in bytes.
        timeout_s: A message that is not renewed for so long is delivered again.
        watch: The connection for takes, if it is another.

    Attributes:
        is_full: Whether the last take found Redis full, and took nothing for that reason.
    """

    def __init__(
        self,
        redis: Redis,
        keys: DeliveryKeys,
        *,
        timeout_s: float,
        max_bytes: int,
        watch: QueueWatch | None = None,
    ) -> None:
        self._redis = redis
        self._watch = watch
        self._delivery_keys = keys
        self._watch_key = f"{keys.unacked}_watch"
        self._keys = [*keys, TAKEN_KEY]
        self.timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._run_take, self._run_put_back, self._run_move_to_large, self._run_restore = (
            redis.register_script(read_script(name, SCRIPTS))
            for name in ("take", "requeue", "move_to_large", "restore")
        )

    def take_all(
        self, lists: Mapping[str, Asked], *, holds_others: bool = False, max_bytes: int = 0
    ) -> list[Delivery]:
        """Take the next messages from the first list that has one.

        Args:
            lists: The lists, in order of service.
            holds_others: Whether this worker has messages: then it takes no more while Redis is full.
            max_bytes: Of the messages together, but for the first.
        """
        call = uuid.uuid4().hex
        args = (
            call,
            self.timeout_s,
            self._max_bytes,
            SHOWN_BYTES,
            "holds" if holds_others else "",
            max_bytes,
        )
        answer = self._run_take(
            keys=[*self._keys, *lists],
            args=[*args, *(part for asked in lists.values() for part in asked)],
            client=None if self._watch is None else self._watch.client(),
        )
        self.is_full = answer == b"full"
        source, others, *messages = (b"", []) if answer is None or self.is_full else answer
        if self._watch is not None:
            self._watch.took(b"" if others else source)
        lists_left = frozenset(key.decode() for key in others)
        return [
            Delivery(tag.decode(), source.decode(), num_bytes, b"".join(parts), len(parts) == 1, lists_left)
            for tag, num_bytes, *parts in messages
        ]

    def attach(self, hub: Hub | None) -> None:
        """Have this event loop of Celery read the connection for takes; None when it ends."""
        if self._watch is not None:
            self._watch.attach(hub)

    def move_to_large(self, tag: str) -> None:
        """Move a message to the second list of its list, for a worker with room for a large job."""
        self._run_move_to_large(keys=self._keys, args=[tag, LARGE_PREFIX])

    def put_back(self, tag: str, delay_s: float = 0.0) -> None:
        """Have a message delivered again: at once and before all others of its list, or after a delay."""
        self._run_put_back(keys=self._keys, args=[tag, delay_s])

    def restore_overdue(self) -> int:
        """Put back the messages that no worker renews any more. Returns how many.

        If no worker has called this for a while, Redis was away: workers then get time to renew first.
        """
        args = [self.timeout_s, renewal_interval_s(self.timeout_s), MAX_RESTORED, MAX_INTERVAL_S]
        return int(self._run_restore(keys=[*self._keys, self._watch_key], args=args))

    def dead_entry(self, reason: str, *, queue: str, job_id: str | None, message: bytes) -> str:
        """What the list of dead messages shows of a message."""
        excerpt = message[:SHOWN_BYTES].decode(errors="backslashreplace")
        entry = {"at": self.now_s(), "reason": reason, "queue": queue, "id": job_id}
        return json.dumps(entry | {"num_bytes": len(message), "message": excerpt})

    def held(self, tag: str) -> bytes | None:
        """The message of a delivery that is not acknowledged yet."""
        value: Any = self._redis.hget(self._delivery_keys.unacked, tag)
        return None if value is None else value.partition(b"\n")[2]

    def now_s(self) -> float:
        """Unix time by Redis's clock, in seconds."""
        seconds, microseconds = self._redis.time()
        return float(seconds + microseconds / 1e6)
