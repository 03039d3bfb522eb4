"""Dispatcher: the clients' blocking calls to Redis: send (again) and cancel jobs, list workers."""

from __future__ import annotations

import logging
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import KIND_TASKS, is_shared, result_key
from kronos_client.core import equal_jobs
from kronos_client.core.job import Job
from kronos_client.core.options import check_waiting
from kronos_client.core.stored import NOT_BEGUN, encode_failure
from kronos_client.otel.spans import SendSpan
from kronos_client.redis.admission import Admission
from kronos_client.redis.connection import NotConfirmed, connect, is_refused, reachable, unreachable
from kronos_client.redis.message import Sending
from kronos_client.redis.routing import choose_queue, jobs_per_s, live_workers
from kronos_client.settings import ClientSettings

if TYPE_CHECKING:
    from kronos_client.contract.worker_status import AnyWorkerStatus


FIRST_PAUSE_S: Final = 0.2
MAX_PAUSE_S: Final = 10.0
SAY_AGAIN_S: Final = 60.0
"""Seconds between two warnings of a process that Redis does not answer: all its jobs may wait for it."""

WORTH_ANOTHER_TRY: Final = (ErrorCode.BROKER_UNREACHABLE, ErrorCode.ENQUEUE_UNCERTAIN, ErrorCode.QUEUE_FULL)


log = logging.getLogger(__name__)


class Retries:
    """The retries of one job, for ``retry_for_s`` after its first refusal.

    A full queue's refusal gives the pause. If Redis does not answer, pauses double up to 10 s. Each pause
    varies by a fifth, so that clients refused at the same time do not return at the same time.
    """

    _said_at: ClassVar[float] = -math.inf

    def __init__(
        self,
        retry_for_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        vary: Callable[[float, float], float] = random.uniform,
    ) -> None:
        check_waiting(retry_for_s=retry_for_s)
        self._clock = clock
        self._vary = vary
        self._retry_for_s = retry_for_s
        self._ends_at: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._uncertain: JobError | None = None

    def pause_s(self, error: JobError) -> float:
        """Seconds until the next try. The last try comes at the end of ``retry_for_s``.

        Raises:
            JobError: There is no further try. ENQUEUE_UNCERTAIN if any try ended so, since the job may be
                under way.
        """
        if error.code == ErrorCode.ENQUEUE_UNCERTAIN:
            self._uncertain = error
        if error.code not in WORTH_ANOTHER_TRY or is_refused(error):
            raise error
        if self._ends_at is None:
            self._ends_at = self._clock() + self._retry_for_s
        now = self._clock()
        remaining_s = self._ends_at - now
        if remaining_s <= 0:
            raise self._uncertain or error
        pause_s = float(error.details.get("retry_after_s", self._pause_s))
        if error.code != ErrorCode.QUEUE_FULL:
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
            if now - Retries._said_at >= SAY_AGAIN_S:
                Retries._said_at = now
                log.warning("%s; trying again for up to %.0f s", error.message, remaining_s)
        return min(pause_s * self._vary(0.8, 1.2), remaining_s)


WORKERS_KNOWN_FOR_S: Final = 1.0


class Dispatcher(ABC):
    """Sends and cancels jobs, in Redis or in a test's memory. Blocks; threads may share it."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings

    def shared(self, job: Job, scope: str | None) -> Job:
        """The job, under the id that equal ones of this scope have if the settings share these.

        ``scope`` is None if the caller chose the job's id.
        """
        if scope is None or not self.settings.share_equal_jobs:
            return job
        return equal_jobs.shared(job, scope, self.known_workers())

    def send_all(self, jobs: Sequence[Job]) -> list[str | JobError]:
        """Send jobs together, unless they have their outcomes already.

        Returns:
            Each one's queue, or its error: NOT_CALIBRATED, NO_GPU_WORKER, ID_CONFLICT, QUEUE_FULL,
            BROKER_UNREACHABLE, ENQUEUE_UNCERTAIN.
        """
        answers = list(map(self._queue_of, jobs))
        chosen = {at: (jobs[at], queue) for at, queue in enumerate(answers) if isinstance(queue, str)}
        errors = self.enqueue([*chosen.values()]) if chosen else []
        for at, error in zip(chosen, errors, strict=True):
            answers[at] = error or answers[at]
        return answers

    def _queue_of(self, job: Job) -> str | JobError:
        names, task = self.settings.queue_names, KIND_TASKS[job.kind.name]
        try:
            workers = self.known_workers()
            if job.calibrated_model is not False:
                from kronos_client.contract.calibration import check_announced

                check_announced(job.calibrated_model, workers)
            return choose_queue(job.device, job.allow_fallback, workers, task, names)
        except JobError as refusal:
            return refusal

    def send_again(self, job: Job, retry_for_s: float, scope: str | None) -> tuple[Job, str]:
        """Send a job, with retries, as ``shared``; returns it as it was sent, and its queue."""
        retries = Retries(retry_for_s)
        while True:
            try:
                shared = self.shared(job, scope)
                (queue,) = self.send_all([shared])
                if isinstance(queue, JobError):
                    raise queue
                return shared, queue
            except JobError as error:
                time.sleep(retries.pause_s(error))

    @abstractmethod
    def enqueue(self, jobs: Sequence[tuple[Job, str]]) -> list[JobError | None]:
        """Send each job to its queue; returns its error or None."""

    @abstractmethod
    def workers(self) -> list[AnyWorkerStatus]:
        """The status of every live worker, as announced."""

    def known_workers(self) -> list[AnyWorkerStatus]:
        """The live workers, at most a second old."""
        return self.workers()

    def fresh_workers(self) -> list[AnyWorkerStatus] | None:
        """The same if nothing must be asked for it, else None. Does not block."""
        return self.known_workers()

    def cancel(self, job_id: str) -> None:
        """Request that a job ends as CANCELLED, at once if no worker has begun it. A shared one goes on."""
        if not is_shared(job_id):
            self._cancel(job_id)

    def try_to_cancel(self, job_id: str) -> None:
        """Cancel a job that nobody waits for. If that fails, it goes on, and its result expires."""
        with suppress(JobError):
            self.cancel(job_id)

    def not_in_time(self, job_id: str, timeout_s: float | None, late: JobError) -> JobError:
        """Cancel a job that is not done in time; returns its TIMEOUT, which says whether that succeeded.

        ``late`` is that of waiting, and says why no worker took the job.
        """
        outcome = "goes on, since others may share it" if is_shared(job_id) else "was cancelled"
        try:
            self.cancel(job_id)
        except JobError as error:
            reason = f"since it could not be cancelled ({error.code})"
            outcome = f"may go on, {reason}: cancel it later by its id, {job_id}"
        return timed_out(timeout_s, outcome, late.details.get("waiting"), job_id=job_id)

    @abstractmethod
    def _cancel(self, job_id: str) -> None:
        """As ``cancel``, for a job of one sender."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""


def timed_out(timeout_s: float | None, outcome: str, waiting: str | None, **details: str) -> JobError:
    """TIMEOUT, with what becomes of the job and why no worker took it."""
    message = f"no result within {timeout_s} s; the job {outcome}"
    if waiting is not None:
        message, details["waiting"] = f"{message}. {waiting}", waiting
    return JobError(ErrorCode.TIMEOUT, message, None, details)


class RedisDispatcher(Dispatcher):
    """Sends Celery's messages, and keeps the jobs' records, in Redis."""

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(settings)
        url, min_replicas = settings.redis_url.get_secret_value(), settings.redis_min_replicas
        self.redis = connect(url, min_replicas=min_replicas)
        self._admission = Admission(
            self.redis,
            result_ttl_s=settings.result_ttl_s,
            max_queue_jobs=settings.max_queue_jobs,
            jobs_per_s=lambda queue: jobs_per_s(queue, self._workers),
            event_exchange=settings.event_exchange,
        )
        self._workers: list[AnyWorkerStatus] = []
        self._workers_read_at = float("-inf")

    def close(self) -> None:
        self.redis.close()

    def workers(self) -> list[AnyWorkerStatus]:
        with reachable():
            return live_workers(self.redis)

    def known_workers(self) -> list[AnyWorkerStatus]:
        if self.fresh_workers() is None:
            now = time.monotonic()
            self._workers = self.workers()
            self._workers_read_at = now
        return self._workers

    def fresh_workers(self) -> list[AnyWorkerStatus] | None:
        return self._workers if time.monotonic() - self._workers_read_at <= WORKERS_KNOWN_FOR_S else None

    def enqueue(self, jobs: Sequence[tuple[Job, str]]) -> list[JobError | None]:
        spans = [SendSpan(job.id, queue, {"kronos.task": job.kind.name}) for job, queue in jobs]
        sendings = [
            Sending(
                job.id,
                job.content,
                queue,
                job.priority,
                job.kind.name,
                job.kwargsrepr,
                span.traceparent,
                job.deadline_s,
            )
            for (job, queue), span in zip(jobs, spans, strict=True)
        ]
        errors = list(map(_error_of, sendings, self._admission.admit(sendings)))
        for span, error in zip(spans, errors, strict=True):
            span.end(error)
        return errors

    def _cancel(self, job_id: str) -> None:
        from kronos_client.redis.job_store import Ending, JobStore, NotStored

        records = JobStore(self.redis, self.settings.result_ttl_s)
        with reachable(job_id):
            if not records.request_cancel(job_id) or self.redis.exists(result_key(job_id)):
                return
            # No worker has begun it, and its queue may be long. The worker that takes the message drops it.
            (answer,) = records.end([Ending(job_id, encode_failure(job_id, NOT_BEGUN))])
            if isinstance(answer, NotStored):
                raise answer


def _error_of(job: Sending, sent: str | Exception) -> JobError | None:
    if isinstance(sent, str):
        return None
    if isinstance(sent, JobError):
        return sent
    error = unreachable(sent)
    if isinstance(sent, NotConfirmed):
        message = "Redis did not confirm that the job was enqueued"
        message += f" ({sent}); submit it again with the same job_id"
        error = JobError(ErrorCode.ENQUEUE_UNCERTAIN, message, None, {"job_id": job.job_id})
    error.__cause__ = sent
    return error
