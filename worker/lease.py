"""A worker's hold on a job that takes long: renewed while it works, given up in time where it cannot be."""

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Final

from redis.exceptions import RedisError

from worker.jobs import JobRecords

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE: Final = 4
MAX_INTERVAL_S: Final = 1.0
SAFE_SHARE: Final = 0.4
"""Of the lease: with less left, the work shall end."""
LAST_SHARE: Final = 0.15
"""With less left, it must end now: another worker may begin it when the lease is over."""


class JobLease:
    """One worker's lease of one job, and the thread that keeps it.

    How much is left is counted on this process's clock, from the moment before Redis was asked: so it ends
    here no later than there. It needs no answer of Redis, which may be away.

    Args:
        chore: done about once a second on the same thread, while Redis answers.
    """

    def __init__(
        self, records: JobRecords, job_id: str, lease_s: float, chore: Callable[[], object] = lambda: None
    ) -> None:
        self.token = uuid.uuid4().hex
        self.lease_s = lease_s
        self._records = records
        self._job_id = job_id
        self._chore = chore
        self._good_until = float("-inf")
        self._is_taken_away = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="kronos-lease", daemon=True)

    @property
    def left_s(self) -> float:
        """Seconds for which nobody else can hold it; below 0 where somebody may."""
        return float("-inf") if self._is_taken_away else self._good_until - time.monotonic()

    @property
    def is_safe(self) -> bool:
        """Whether there is time to go on."""
        return self.left_s > SAFE_SHARE * self.lease_s

    @property
    def is_running_out(self) -> bool:
        """Whether the work must be over at once."""
        return self.left_s < LAST_SHARE * self.lease_s

    def taken(self, asked_at: float) -> None:
        """Redis granted it; asked at this moment of ``time.monotonic``. From now on it is renewed."""
        self._good_until = asked_at + self.lease_s
        self._thread.start()

    def end(self) -> None:
        """Renew no more. What is left runs out by itself."""
        self._is_over.set()

    def release(self) -> None:
        """Let another take it at once."""
        self.end()
        if self._thread.is_alive():
            self._thread.join(self.lease_s)  # a renewal on its way would take it again
        try:
            self._records.release_lease(self._job_id, self.token)
        except RedisError as error:
            log.warning(
                "job %s: its lease could not be released, it expires by itself: %s", self._job_id, error
            )

    def _keep(self) -> None:
        interval_s = min(MAX_INTERVAL_S, self.lease_s / RENEWALS_PER_LEASE / 2)
        while not self._is_over.wait(interval_s) and not self._is_taken_away:
            try:
                if self.left_s < self.lease_s * (1 - 1 / RENEWALS_PER_LEASE):
                    self._renew()
                self._chore()
            except RedisError as error:
                log.warning("job %s: Redis does not answer as needed, trying again: %s", self._job_id, error)
            except Exception:  # the next renewal must be tried, whatever became of this round
                log.exception("job %s: a defect beside its lease, going on", self._job_id)

    def _renew(self) -> None:
        asked_at = time.monotonic()
        if self._records.renew_lease(self._job_id, self.token, self.lease_s):
            self._good_until = asked_at + self.lease_s
        else:
            log.warning("job %s: another worker has it, or it has its outcome", self._job_id)
            self._is_taken_away = True
