"""Messages that a worker has taken off its queues and not acknowledged yet, as Redis keeps them.

Each step is one script: a message is on its list or noted as taken, and nothing that dies in between loses
it. All moments are of Redis's clock.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redis import Redis

from kronos_client.contract.names import DEAD_KEY, KEY_PREFIX
from kronos_client.redis.scripts import read_script

SCRIPTS: Final = Path(__file__).parent / "lua"

TAKEN_KEY: Final = f"{KEY_PREFIX}taken"
"""A hash of how many messages were ever taken off each list, less those that came back."""

SHOWN_BYTES: Final = 2048
"""Of a message that is too large, at each end; and of one that is buried."""

MAX_RESTORED: Final = 100
LOOKS_PER_TIMEOUT: Final = 4
"""Three renewals in a row may fail before a job counts as abandoned."""


def look_interval_s(timeout_s: float) -> float:
    """How often each worker is to renew its messages, and to look for overdue ones."""
    return min(5.0, timeout_s / LOOKS_PER_TIMEOUT)


@dataclass(frozen=True)
class Delivery:
    """One message as it was taken.

    Attributes:
        tag: of this delivery; a message that is taken again gets another.
        source: the list that it was on, which is a queue's for one priority.
        num_bytes: of the message.
        message: all of it; where it is too large, its two ends.
    """

    tag: str
    source: str
    num_bytes: int
    message: bytes
    is_whole: bool = True


class Deliveries:
    """Takes messages and accounts for them, in keys that all workers of a role share.

    Args:
        redis: answers in bytes.
        timeout_s: what is not renewed for so long is delivered again.
        max_bytes: of a message that is read.
        max_dead: messages that the list of dead ones keeps.
    """

    def __init__(
        self,
        redis: Redis,
        unacked_key: str,
        index_key: str,
        *,
        timeout_s: float,
        max_bytes: int,
        max_dead: int,
    ) -> None:
        self._redis = redis
        self._keys = (unacked_key, index_key, TAKEN_KEY)
        self._watch_key = f"{unacked_key}_watch"
        self.timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._max_dead = max_dead
        self._run_take = redis.register_script(read_script("take", SCRIPTS))
        self._run_put_back = redis.register_script(read_script("requeue", SCRIPTS))
        self._run_restore = redis.register_script(read_script("restore", SCRIPTS))
        self._run_bury = redis.register_script(read_script("bury", SCRIPTS))

    def take(self, lists: Sequence[str]) -> Delivery | None:
        """The next message of the first of these lists that has one."""
        tag = uuid.uuid4().hex
        answer = self._run_take(keys=[*self._keys, *lists], args=[tag, self._max_bytes, SHOWN_BYTES])
        if answer is None:
            return None
        source, num_bytes, *parts = answer
        return Delivery(tag, source.decode(), num_bytes, b"".join(parts), is_whole=len(parts) == 1)

    def forget(self, tag: str) -> None:
        """It is acknowledged."""
        unacked_key, index_key, _ = self._keys
        with self._redis.pipeline() as pipe:
            pipe.zrem(index_key, tag)
            pipe.hdel(unacked_key, tag)
            pipe.execute()

    def put_back(self, tag: str, delay_s: float = 0.0) -> None:
        """Have a message delivered again: at once, before all others of its list, or after some time."""
        self._run_put_back(keys=self._keys, args=[tag, delay_s, self.timeout_s])

    def restore_overdue(self) -> int:
        """Put back what nobody renews any more; how many messages that were.

        Where nobody has looked for a while Redis was away, and holders could not renew: they come first.
        """
        gap_s = 2 * look_interval_s(self.timeout_s)
        args = [self.timeout_s, gap_s, self.timeout_s / 2, MAX_RESTORED]
        return int(self._run_restore(keys=[*self._keys, self._watch_key], args=args))

    def bury(self, tag: str, reason: str, *, queue: str, job_id: str | None, message: bytes) -> None:
        """Move a message that nobody can read or answer to the list of dead ones."""
        entry = {
            "at": self.now_s(),
            "reason": reason,
            "queue": queue,
            "id": job_id,
            "num_bytes": len(message),
            "message": message[:SHOWN_BYTES].decode(errors="backslashreplace"),
        }
        unacked_key, index_key, _ = self._keys
        keys = [unacked_key, index_key, DEAD_KEY]
        self._run_bury(keys=keys, args=[tag, json.dumps(entry), self._max_dead])

    def held(self, tag: str) -> bytes | None:
        """The message of a delivery that is not acknowledged."""
        value: Any = self._redis.hget(self._keys[0], tag)
        return None if value is None else value.partition(b"\n")[2]

    def now_s(self) -> float:
        """Redis's clock, Unix time in seconds."""
        seconds, microseconds = self._redis.time()
        return float(seconds + microseconds / 1e6)
