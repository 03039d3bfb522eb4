"""Outcome: what is stored of one job, from its submitter's side: its state, its result or error. No torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

from celery import states
from celery.exceptions import BackendError
from celery.exceptions import TimeoutError as CeleryTimeout
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from redis.exceptions import AuthenticationError, RedisError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.forgetting import forget
from kronos_client.redis.connection import REFUSED
from kronos_client.redis.job_store import JobStore

# Celery's result consumer raises a bare RuntimeError once it has given up reconnecting.
NOT_REACHED: Final = (RedisError, OperationalError, BackendError, RuntimeError)

NOT_BEGUN: Final = JobError(ErrorCode.CANCELLED, "the job was cancelled before it was begun, as asked")


@contextmanager
def reachable(job_id: str | None = None) -> Iterator[None]:
    """Turns a Redis that does not answer into JobError BROKER_UNREACHABLE."""
    try:
        yield
    except NOT_REACHED as error:
        raise JobError(
            ErrorCode.BROKER_UNREACHABLE,
            f"{REFUSED} ({type(error).__name__})"
            if AuthenticationError in (type(error), type(error.__cause__))
            else f"Redis does not answer ({type(error).__name__}); is it running, and is the URL right?",
            None,
            {} if job_id is None else {"job_id": job_id},
        ) from error


class Stored(NamedTuple):
    """A job's state by Celery's name, and what is stored with it: progress, the result, or the error."""

    status: str
    value: Any

    @property
    def has_ended(self) -> bool:
        """Whether it is the job's outcome."""
        return self.status in states.READY_STATES


class Outcome(Protocol):
    """What a handle asks for its job: of Redis, or of an app's test."""

    def read(self) -> Stored:
        """What is stored now; PENDING where nothing is."""

    def wait(self, timeout_s: float) -> Stored | None:
        """The job's outcome as soon as it is there, None where it is not within this time."""

    def explain_absence(self) -> JobError | None:
        """Why a job of which nothing is stored will have no outcome; None where it is still to come."""

    def cancel(self) -> None:
        """Ask for the job to end as CANCELLED, or end it where nobody has begun it."""

    def forget(self) -> bool:
        """Delete the result; whether there was one."""


class CeleryOutcome:
    """The one in Celery's Redis backend and the job's record."""

    def __init__(self, result: "AsyncResult[Any]", records: JobStore) -> None:
        self._result = result
        self._records = records

    def read(self) -> Stored:
        # By this thread's own backend, not that of the one which enqueued: of those each has a connection.
        meta = self._result.app.backend.get_task_meta(self._result.id)
        return Stored(meta["status"], meta.get("result"))

    def wait(self, timeout_s: float) -> Stored | None:
        # An app may well wait in a task of its own: its workers are not ours, so none blocks itself. Not by
        # Celery's on_message: of handles that are waited for at once, one would hear of all jobs.
        try:
            self._result.get(timeout=timeout_s, propagate=False, disable_sync_subtasks=False)
        except CeleryTimeout:
            return None
        return Stored(self._result.status, self._result.result)

    def explain_absence(self) -> JobError | None:
        return self._records.explain_absence(self._result.id)

    def cancel(self) -> None:
        job_id = self._result.id
        if self._records.request_cancel(job_id) and self.read().status == states.PENDING:
            # Nobody has begun it, and its queue may be long. Whoever takes it later finds it ended.
            self._result.backend.mark_as_failure(job_id, NOT_BEGUN)

    def forget(self) -> bool:
        is_gone = forget(self._result)
        self._result = self._result.app.AsyncResult(self._result.id)  # the other one remembers what it read
        return is_gone
