"""This process's claims on its jobs, and how long each claim surely lasts."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from redis.exceptions import RedisError

from kronos_client.redis.job_store import JobStore

log = logging.getLogger(__name__)

MAX_INTERVAL_S: Final = 5.0
RENEWALS_PER_TIMEOUT: Final = 4
"""Three renewals in a row may fail before a job counts as abandoned."""
SAFE_SHARE: Final = 0.4
"""With less than this share of the timeout left, the work should end."""
LAST_SHARE: Final = 0.15
"""With less than this share left, it must end now: another worker may begin the job soon."""


def renewal_interval_s(timeout_s: float) -> float:
    """Seconds between two renewals of a worker's claims, and between two checks for overdue messages."""
    return min(MAX_INTERVAL_S, timeout_s / RENEWALS_PER_TIMEOUT)


class Claim:
    """This process's claim on one job.

    The time left is counted on this process's clock, from just before the request to Redis. So the claim ends
    here no later than in Redis, even if Redis is away.

    Args:
        timeout_s: Seconds that a claim lasts without a renewal.
        asked_at: The moment of the request to Redis, by ``time.monotonic``.
        on_tick: Called about once a second while Redis answers.
    """

    def __init__(
        self, job_id: str, timeout_s: float, asked_at: float, on_tick: Callable[[], object] = lambda: None
    ) -> None:
        self.job_id = job_id
        self.on_tick = on_tick
        self.is_taken_away = False
        self._timeout_s = timeout_s
        self.renew(asked_at)

    @property
    def left_s(self) -> float:
        """Seconds for which no other process can have the job; below 0 if one may have it."""
        return float("-inf") if self.is_taken_away else self._good_until - time.monotonic()

    @property
    def is_safe(self) -> bool:
        """Whether there is enough time to continue."""
        return self.left_s > SAFE_SHARE * self._timeout_s

    @property
    def is_running_out(self) -> bool:
        """Whether the work must end at once."""
        return self.left_s < LAST_SHARE * self._timeout_s

    def renew(self, asked_at: float) -> None:
        """Extend the claim to its full time from that moment."""
        self._good_until = asked_at + self._timeout_s


class Claims:
    """The claims of a process. May be shared by threads. Each lasts ``timeout_s`` without a renewal."""

    def __init__(self, store: JobStore, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._store = store
        self._held: dict[str, Claim] = {}  # by the delivery's tag
        self._lock = threading.Lock()

    def hold(
        self, job_id: str, tag: str, asked_at: float, on_tick: Callable[[], object] = lambda: None
    ) -> Claim:
        """Note a claim that Redis granted; ``asked_at`` is the moment of the request."""
        claim = Claim(job_id, self.timeout_s, asked_at, on_tick)
        with self._lock:
            self._held[tag] = claim
        return claim

    def has(self, job_id: str) -> bool:
        """Whether this process has a claim on the job."""
        with self._lock:
            return any(claim.job_id == job_id for claim in self._held.values())

    def drop(self, tag: str) -> None:
        """Forget a claim: the outcome is stored, or another worker gets the job."""
        with self._lock:
            self._held.pop(tag, None)

    def release(self, job_id: str, tag: str, how: str, *, is_lost: bool = False) -> None:
        """As ``JobStore.release``. Also for a request whose answer was lost: the claim may exist."""
        self.drop(tag)
        try:
            self._store.release(job_id, tag, how, is_lost=is_lost)
        except RedisError as error:
            log.warning("job %s: its claim could not be released, it expires: %s", job_id, error)

    def take_away(self, tag: str) -> bool:
        """Mark a claim as lost to another worker. Returns True the first time, False for unknown tags."""
        with self._lock:
            claim = self._held.get(tag)
            if claim is None or claim.is_taken_away:
                return False
            claim.is_taken_away = True
        log.warning("job %s: another worker was given it; this outcome is discarded", claim.job_id)
        return True

    def renew(self, claims: Mapping[str, str], others: Iterable[str] = ()) -> None:
        """As ``JobStore.renew``, and take away the claims that have ended."""
        with self._lock:
            held = dict(self._held)  # the answer says nothing of a claim that is granted after the request
        asked_at = time.monotonic()
        for tag, lives in self._store.renew(claims, others, held, timeout_s=self.timeout_s).items():
            if tag not in held:
                continue
            if lives:
                held[tag].renew(asked_at)
            else:
                self.take_away(tag)

    def on_tick(self) -> None:
        """Call ``on_tick`` of each claim; to be called about once a second."""
        with self._lock:
            claims = list(self._held.values())
        for claim in claims:
            claim.on_tick()
