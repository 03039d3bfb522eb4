"""A worker's hold on its jobs: leases that one thread renews, each given up in time where it cannot be."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from redis.exceptions import RedisError

from kronos_client.redis.job_store import JobRecords

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE: Final = 4
MAX_INTERVAL_S: Final = 1.0
SAFE_SHARE: Final = 0.4
"""Of the lease: with less left, the work shall end."""
LAST_SHARE: Final = 0.15
"""With less left, it must end now: another worker may begin it when the lease is over."""


class Lease:
    """One worker's lease of one job.

    How much is left is counted on this process's clock, from the moment before Redis was asked: so it ends
    here no later than there. It needs no answer of Redis, which may be away.

    Args:
        asked_at: when Redis was asked for it, by ``time.monotonic``.
    """

    def __init__(self, job_id: str, token: str, lease_s: float, asked_at: float) -> None:
        self.job_id = job_id
        self.token = token
        self.lease_s = lease_s
        self.is_taken_away = False
        self._good_until = asked_at + lease_s

    @property
    def left_s(self) -> float:
        """Seconds for which nobody else can hold it; below 0 where somebody may."""
        return float("-inf") if self.is_taken_away else self._good_until - time.monotonic()

    @property
    def is_safe(self) -> bool:
        """Whether there is time to go on."""
        return self.left_s > SAFE_SHARE * self.lease_s

    @property
    def is_running_out(self) -> bool:
        """Whether the work must be over at once."""
        return self.left_s < LAST_SHARE * self.lease_s

    def renewed(self, asked_at: float) -> None:
        """It lives as long again, from then on."""
        self._good_until = asked_at + self.lease_s


class LeaseKeeper:
    """Keeps the leases of a process, or of a part of it, until it is stopped.

    All that are due are renewed in one round trip; of a short job none is. May be shared by threads.

    Args:
        chore: done about once a second on the same thread, while Redis answers.
    """

    def __init__(
        self, records: JobRecords, lease_s: float, chore: Callable[[], object] = lambda: None
    ) -> None:
        self.lease_s = lease_s
        self._records = records
        self._chore = chore
        self._held: dict[str, Lease] = {}  # by token
        self._lock = threading.Lock()
        self._renewing = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, job_id: str, token: str, asked_at: float) -> Lease:
        """Redis granted it, asked at this moment of ``time.monotonic``. From now on it is renewed."""
        lease = Lease(job_id, token, self.lease_s, asked_at)
        with self._lock:
            self._held[token] = lease
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="kronos-leases", daemon=True)
                self._thread.start()
        return lease

    def has(self, job_id: str) -> bool:
        """Whether the job is under a lease of these."""
        with self._lock:
            return any(lease.job_id == job_id for lease in self._held.values())

    def drop(self, token: str) -> None:
        """Renew it no more. What is left runs out by itself."""
        with self._lock:
            self._held.pop(token, None)

    def release(self, job_id: str, token: str, *, is_lost: bool = False) -> None:
        """Let another take the job at once; ``is_lost`` as of ``JobRecords.release_lease``.

        Also for a lease that was asked for and may have been granted.
        """
        self.drop(token)
        try:
            with self._renewing:  # a renewal on its way would take it again
                self._records.release_lease(job_id, token, is_lost=is_lost)
        except RedisError as error:
            log.warning("job %s: its lease could not be released, it expires by itself: %s", job_id, error)

    def take_away(self, token: str) -> bool:
        """Its job is another's. Whether it is one of these, and nobody knew."""
        with self._lock:
            lease = self._held.get(token)
            if lease is None or lease.is_taken_away:
                return False
            lease.is_taken_away = True
        log.warning("job %s: another worker has it; what is computed here is discarded", lease.job_id)
        return True

    def stop(self) -> None:
        """Renew none any more."""
        self._is_over.set()

    def _keep(self) -> None:
        interval_s = min(MAX_INTERVAL_S, self.lease_s / RENEWALS_PER_LEASE / 2)
        while not self._is_over.wait(interval_s):
            try:
                with self._renewing:
                    self._renew_due()
                self._chore()
            except RedisError as error:
                log.warning("leases: Redis does not answer as needed, trying again: %s", error)
            except Exception:  # the next renewal must be tried, whatever became of this round
                log.exception("leases: a defect beside them, going on")

    def _renew_due(self) -> None:
        enough_s = self.lease_s * (1 - 1 / RENEWALS_PER_LEASE)
        with self._lock:
            due = [
                lease for lease in self._held.values() if lease.left_s < enough_s and not lease.is_taken_away
            ]
        if not due:
            return
        asked_at = time.monotonic()
        answers = self._records.renew_leases([(lease.job_id, lease.token) for lease in due], self.lease_s)
        for lease, is_ours in zip(due, answers, strict=True):
            if is_ours:
                lease.renewed(asked_at)
            else:
                self.take_away(lease.token)
