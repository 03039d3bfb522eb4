"""Whether Redis takes what this process stores."""

import logging
import re
import threading
import time
from typing import Final

from kronos_model.text import escaped, one_line

log = logging.getLogger(__name__)

PATIENCE_S: Final = 3.0
"""Seconds without a stored outcome after which refusals are a problem."""
LASTS_S: Final = 15.0
"""Seconds after the last refusal for which a problem is shown."""
LOG_INTERVAL_S: Final = 60.0
MAX_CHARS: Final = 200

REMEDIES: Final = {
    "OOM|OutOfMemory": "make room in Redis, or raise its maxmemory",
    "MISCONF": "make room on Redis's disk, and let it write there",
    "NOPERM|NoPermission|can't (run|acc|pub)": "give Redis's user the rights in deploy/redis-users.acl",
    "NOAUTH|WRONGPASS|Authentication": "correct user and password in KRONOS_REDIS_URL or its file",
    "READONLY|ReadOnly|MASTERDOWN|MasterDown": "let KRONOS_REDIS_URL name the primary",
    "BUSY ": "end the script that runs in Redis (SCRIPT KILL)",
    "NOREPLICAS": "start Redis's replicas, or lower its min-replicas-to-write",
    "max number of clients": "raise Redis's maxclients, or close connections of others",
}
"""What to do, by a pattern of the error."""
OTHERWISE: Final = "see Redis's log"


class StoreHealth:
    """Notes refusals. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refused_since: float | None = None
        self._refused_at = 0.0
        self._next_log = 0.0
        self._reason = ""

    @property
    def problem(self) -> str | None:
        """Why nothing can be stored, and what to do; None if there was no refusal, or only for a moment.

        Whoever shows it first, and after each minute, logs it.
        """
        with self._lock:
            since, now = self._refused_since, time.monotonic()
            if since is None or now < since + PATIENCE_S or now > self._refused_at + LASTS_S:
                return None
            if now >= self._next_log:
                self._next_log = now + LOG_INTERVAL_S
                log.error("%s. This worker keeps what it computed, and tries again", self._reason)
            return self._reason

    def refused(self, error: BaseException) -> None:
        """Note that Redis refused to let this process take, begin or end a job."""
        text = f"{type(error).__name__}: {one_line(str(error))}"
        remedy = next((remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, text)), OTHERWISE)
        now = time.monotonic()
        with self._lock:
            self._reason = f"Redis refuses what this worker writes ({escaped(text, MAX_CHARS)}); {remedy}"
            if self._refused_since is None or now > self._refused_at + LASTS_S:
                self._refused_since = now
            self._refused_at = now

    def accepted(self) -> None:
        """Note that an outcome was stored."""
        with self._lock:
            since, self._refused_since = self._refused_since, None
        if since is not None and time.monotonic() >= since + PATIENCE_S:
            log.info("Redis accepts outcomes again")


store_health: Final = StoreHealth()
"""That of this process."""
