"""The forecast jobs that this worker holds: begun, computed and ended in batches, on one thread.

That is the thread of Celery's event loop, which waits for nothing but Redis's answers. The engine thread
computes.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from kronos_client.contract.names import PROGRESS_STATE
from kronos_client.core.stored import encode_state
from kronos_client.redis.job_store import Ending
from worker.broker import transport
from worker.broker.store_health import store_health
from worker.inference.engine_thread import JobRun
from worker.inference.forecast_process import ForecastProcess
from worker.process import Jobs
from worker.tasks.attempt import REQUEUE_DELAY_S, Requeued

if TYPE_CHECKING:
    from worker.tasks.forecast import ForecastAttempt

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
MAX_AT_ONCE: Final = 64


class ForecastJobs(Jobs):
    """The jobs of a process. ``add`` and ``changed`` may be called from any thread."""

    def __init__(self, process: ForecastProcess) -> None:
        self.process = process
        self.backend = transport.backend()
        self.runs: list[JobRun] = []  # for the engine thread, at the end of the round
        self._received: deque[ForecastAttempt] = deque()
        self._changed: deque[ForecastAttempt] = deque()
        self._begun: dict[str, ForecastAttempt] = {}  # by the delivery's tag
        self._running = threading.Lock()
        self._begin_at = self._check_at = 0.0  # by time.monotonic

    def __len__(self) -> int:
        return len(self._received) + len(self._begun)

    def add(self, attempt: "ForecastAttempt") -> None:
        """Take a job that was received."""
        self._received.append(attempt)
        transport.message_consumer().wake()

    def changed(self, attempt: "ForecastAttempt") -> None:
        """Note that a job may go on."""
        self._changed.append(attempt)
        transport.message_consumer().wake()

    def forget(self, attempt: "ForecastAttempt") -> None:
        """A job has ended here: there is room for another."""
        self._begun.pop(attempt.tag, None)
        transport.message_consumer().wake()

    def run(self) -> None:
        """Begin, go on with and end jobs, as far as that is possible now."""
        if not self._running.acquire(blocking=False):
            return  # another thread does it
        try:
            if time.monotonic() >= self._check_at:
                self._check_at = time.monotonic() + CHECK_INTERVAL_S
                self._check()
            self._begin()
            for _ in range(min(len(self._changed), MAX_AT_ONCE)):
                attempt = self._changed.popleft()
                _go_on(attempt, attempt.advance)
        finally:
            if self.runs:
                self.process.host.engine_thread.submit(tuple(self.runs))
                self.runs.clear()
            self._running.release()
        if self._changed or (self._received and time.monotonic() >= self._begin_at):
            transport.message_consumer().wake()

    def _begin(self) -> None:
        """Claim received jobs, and start them."""
        asked_at, process = time.monotonic(), self.process
        if not self._received or asked_at < self._begin_at:
            return
        batch = [self._received.popleft() for _ in range(min(len(self._received), MAX_AT_ONCE))]
        try:
            beginnings = [attempt.beginning() for attempt in batch]
            answers = process.job_store.begin_all(beginnings, process.claims.timeout_s, process.node)
        except RedisError as error:
            store_health.refused(error)
            if process.state == "draining":
                for attempt in batch:
                    attempt.leave(Requeued(f"{type(error).__name__}: {error}"))
            else:  # they stay here: another worker would get the same answer
                self._received.extendleft(reversed(batch))
                self._begin_at = asked_at + REQUEUE_DELAY_S
            return
        for attempt, answer in zip(batch, answers, strict=True):
            if isinstance(answer, RedisError):
                store_health.refused(answer)
            self._begun[attempt.tag] = attempt
            _go_on(attempt, attempt.begun, answer, asked_at)

    def _check(self) -> None:
        """What is due about once a second: cancellations, hand-overs, progress."""
        attempts = list(self._begun.values())
        cancelled: set[str] = set()
        store = self.process.job_store
        try:
            cancelled = store.cancelled([attempt.job_id for attempt in attempts])
        except RedisError as error:
            log.warning("Redis failed, cancellations are noticed late: %s", error)
        reported = []
        for attempt in attempts:
            _go_on(attempt, attempt.check, attempt.job_id in cancelled)
            if (progress := attempt.new_progress()) is not None:
                state = encode_state(attempt.job_id, PROGRESS_STATE, progress.as_json())
                reported.append(Ending(attempt.job_id, state, attempt.tag))
        try:
            for first in range(0, len(reported), MAX_AT_ONCE):
                store.store_states(reported[first : first + MAX_AT_ONCE])
        except RedisError as error:
            log.warning("the jobs' progress could not be stored: %s", error)


def _go_on(attempt: "ForecastAttempt", call: Callable[..., object], *args: Any) -> None:
    """Make a call for one job. An error ends this job, and a defect in its end does not harm the others."""
    try:
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001  ``fail`` logs those without a code
            attempt.fail(error)
    except Exception:
        log.exception("job %s: it could not go on because of a defect", attempt.job_id)
