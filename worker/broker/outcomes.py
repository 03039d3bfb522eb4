"""Ends jobs in Redis, keeps an outcome until Redis accepts it, and names the reason of a refusal."""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from redis.backoff import EqualJitterBackoff
from redis.exceptions import RedisError

from kronos_client.redis.connection import refusal
from kronos_client.redis.job_store import Ended, Ending, JobStore, NotStored

log = logging.getLogger(__name__)

MAX_KEPT_BYTES: Final = 64 * 2**20
"""Bytes of outcomes that wait for Redis; with more, the worker takes no further jobs."""
MAX_AT_ONCE: Final = 64
MAX_BYTES_AT_ONCE: Final = 4 * 2**20
"""Outcomes in one call, and their bytes; a larger one goes alone."""
MIN_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 3.0
PAUSES: Final = EqualJitterBackoff(cap=MAX_PAUSE_S, base=0.1)
MAX_EXPONENT: Final = 10
"""redis-py doubles the pause so many times at most: it would overflow after hours."""
MAX_TRIES: Final = 10
"""Tries that fail although another outcome was stored since the one before; then the job is given up."""

PATIENCE_S: Final = 3.0
"""Seconds without a stored outcome after which refusals are a problem."""
LASTS_S: Final = 15.0
"""Seconds after the last refusal for which a problem is shown."""
LOG_INTERVAL_S: Final = 60.0
OnDone = Callable[[Ended | RedisError], object]


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

        The first caller that gets the reason logs it, and then one caller a minute.
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
        text, remedy = refusal(error)
        now = time.monotonic()
        with self._lock:
            self._reason = f"Redis refuses what this worker writes ({text}); {remedy}"
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
"""The one of this process."""


@dataclass(eq=False)
class _Waiting:
    """An outcome that is to be stored, and how often Redis refused it."""

    ending: Ending
    task: str
    outcome: object
    on_done: OnDone
    due_at: float = 0.0  # by time.monotonic
    num_tries: int = 0
    num_alone: int = 0  # tries that failed although another outcome was stored
    seen_stored: int = 0


class Outcomes:
    """Ends the jobs of one process. May be shared by threads.

    Attributes:
        on_end: Called with the task, the job's id and the outcome, once each outcome is stored.
        on_repeated: Called with the tag of a delivery whose outcome is given up at a shutdown.
        dead_entry: Returns the entry of a delivery for the dead messages, with this reason.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._num_stored = 0
        self._kept_until = math.inf  # by time.monotonic
        self.on_end: Callable[[str, str, object], object] = lambda task, job_id, outcome: None
        self.on_repeated: Callable[[str], object] = lambda tag: None
        self.dead_entry: Callable[[str, str, str], str] = lambda tag, job_id, reason: ""

    @property
    def num_kept_bytes(self) -> int:
        """Bytes of outcomes that Redis refused so far."""
        with self._lock:
            return sum(len(waiting.ending.outcome) for waiting in self._waiting if waiting.num_tries)

    @property
    def has_room(self) -> bool:
        """Whether another job may be taken."""
        return self.num_kept_bytes < MAX_KEPT_BYTES

    def keep_for(self, seconds: float) -> None:
        """Keep outcomes that Redis refuses for this time at most: the worker shuts down."""
        self._kept_until = min(self._kept_until, time.monotonic() + seconds)

    def end(self, ending: Ending, *, task: str = "", outcome: object = None, waits: bool = False) -> Ended:
        """Store and publish a job's outcome, and remove its message and its claim.

        Args:
            outcome: The result or error that ``ending`` has encoded.
            waits: Whether to try again until Redis accepts it, instead of raising its error.

        Raises:
            RedisError: The job has not ended: its message is delivered again.
        """
        answers: queue.SimpleQueue[Ended | RedisError] = queue.SimpleQueue()
        waiting = _Waiting(ending, task, outcome, answers.put)
        if waits:
            self._add(waiting)
            answer = self._await(waiting, answers)
        else:
            (answer,) = self._stored([waiting])
        if isinstance(answer, RedisError):
            raise answer
        if not waits:
            self._note(waiting, answer)
        return answer

    def put(self, ending: Ending, on_done: OnDone, *, task: str = "", outcome: object = None) -> None:
        """As ``end``, by ``flush``; ``on_done`` gets what became of it, or the error that ends the tries."""
        self._add(_Waiting(ending, task, outcome, on_done))

    def flush(self) -> None:
        """Store what is due, many outcomes a call."""
        while batch := self._next_batch():
            answers = self._stored(batch)
            for waiting, answer in zip(batch, answers, strict=True):
                try:
                    if isinstance(answer, RedisError):
                        self._refused(waiting, answer)
                    else:
                        self._note(waiting, answer)
                        waiting.on_done(answer)
                except Exception:  # the others of the call are stored, or must be kept
                    log.exception("job %s: a defect after its outcome", waiting.ending.job_id)
            if all(isinstance(answer, RedisError) for answer in answers):
                return  # the others would wait for Redis as long

    def _await(
        self, waiting: _Waiting, answers: "queue.SimpleQueue[Ended | RedisError]"
    ) -> Ended | RedisError:
        while True:
            self.flush()  # as other threads may
            pause_s = min(MAX_PAUSE_S, max(MIN_PAUSE_S, waiting.due_at - time.monotonic()))
            with suppress(queue.Empty):
                return answers.get(timeout=pause_s)

    def _add(self, waiting: _Waiting) -> None:
        with self._lock:
            self._waiting.append(waiting)

    def _next_batch(self) -> list[_Waiting]:
        """Takes what one call may store of what is due; one that is larger goes alone."""
        batch: list[_Waiting] = []
        with self._lock:
            now, num_bytes = time.monotonic(), 0
            for waiting in [waiting for waiting in self._waiting if waiting.due_at <= now][:MAX_AT_ONCE]:
                num_bytes += len(waiting.ending.outcome)
                if batch and num_bytes > MAX_BYTES_AT_ONCE:
                    break
                batch.append(waiting)
                self._waiting.remove(waiting)
        return batch

    def _stored(self, batch: list[_Waiting]) -> Sequence[Ended | RedisError]:
        try:
            answers: Sequence[Ended | RedisError] = self._store.end([waiting.ending for waiting in batch])
        except RedisError as error:
            answers = [error] * len(batch)
        for answer in answers:
            if isinstance(answer, RedisError):
                store_health.refused(answer)
        return answers

    def _note(self, waiting: _Waiting, answer: Ended) -> None:
        if answer == "stored":
            store_health.accepted()
            self._num_stored += 1
            if waiting.outcome is not None:
                self.on_end(waiting.task, waiting.ending.job_id, waiting.outcome)

    def _refused(self, waiting: _Waiting, error: RedisError) -> None:
        """Try again later, unless the job alone cannot end, or the worker has shut down for long."""
        log.debug("job %s: its outcome is kept until Redis accepts it: %s", waiting.ending.job_id, error)
        waiting.num_tries += 1
        waiting.num_alone += waiting.num_tries > 1 and self._num_stored > waiting.seen_stored
        waiting.seen_stored = self._num_stored
        is_over = waiting.num_alone >= MAX_TRIES and self._is_buried(waiting.ending, error)
        if not is_over and time.monotonic() > self._kept_until:
            self.on_repeated(waiting.ending.tag)
            is_over = True
        if is_over:
            waiting.on_done(error)
            return
        waiting.due_at = time.monotonic() + PAUSES.compute(min(waiting.num_tries, MAX_EXPONENT))
        self._add(waiting)

    def _is_buried(self, ending: Ending, error: RedisError) -> bool:
        """Move the message of a job that alone cannot end to the dead messages; returns whether it moved."""
        reason = f"its outcome cannot be stored, though those of other jobs can: {error}"
        try:
            entry = self.dead_entry(ending.tag, ending.job_id, reason)
            (answer,) = self._store.end([Ending("", "", ending.tag, entry)])  # names no key of the job
        except RedisError:
            return False
        if isinstance(answer, NotStored):
            return False
        log.error("job %s went to kronos:dead: %s", ending.job_id, reason)
        return True
