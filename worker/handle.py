"""JobHandle: an enqueued job, from its submitter's side; one kind for each task. No torch."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from celery import states
from celery.exceptions import BackendError
from celery.exceptions import TimeoutError as CeleryTimeout
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from pydantic import ValidationError
from redis.exceptions import RedisError

from worker.contract.errors import ErrorCode, JobError
from worker.contract.finetune_results import FinetuneProgress, FinetuneResult
from worker.contract.names import PROGRESS_STATE
from worker.contract.results import ForecastResult
from worker.jobs import JobRecords

PROGRESS_INTERVAL_S: Final = 1.0
"""As often as workers tell how far a job is."""

# Celery's result consumer raises a bare RuntimeError once it has given up reconnecting.
NOT_REACHED: Final = (RedisError, OperationalError, BackendError, RuntimeError)


@contextmanager
def reachable(job_id: str | None = None) -> Iterator[None]:
    """Turns a Redis that does not answer into JobError BROKER_UNREACHABLE."""
    try:
        yield
    except NOT_REACHED as error:
        raise JobError(
            ErrorCode.BROKER_UNREACHABLE,
            f"Redis does not answer ({type(error).__name__}); is it running, and is the URL right?",
            None,
            {} if job_id is None else {"job_id": job_id},
        ) from error


@dataclass(frozen=True)
class TaskState:
    """Where a job is: PENDING (queued, or unknown), STARTED, PROGRESS, SUCCESS or FAILURE."""

    name: str

    @property
    def has_ended(self) -> bool:
        """Whether the job came to its outcome."""
        return self.name in states.READY_STATES


@dataclass(frozen=True)
class JobState(TaskState):
    """Where a forecast is; while it is PROGRESS, how many of all bars of all paths are done."""

    bars_done: int | None = None
    bars_total: int | None = None


@dataclass(frozen=True)
class FinetuneState(TaskState):
    """Where a finetuning job is; while it is PROGRESS, how far training is."""

    progress: FinetuneProgress = field(default_factory=FinetuneProgress)


State = TypeVar("State", bound=TaskState)
Result = TypeVar("Result")


class JobHandle(ABC, Generic[State, Result]):
    """An enqueued job. ``queue`` is None where somebody else put it there."""

    def __init__(
        self, job_id: str, queue: str | None, result: "AsyncResult[Any]", records: JobRecords
    ) -> None:
        self.id = job_id
        self.queue = queue
        self._result = result
        self._records = records

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, queue={self.queue!r})"

    @abstractmethod
    def _read_state(self, name: str, meta: Mapping[str, Any]) -> State:
        """A state of that name; ``meta`` is what the worker told, empty unless it is PROGRESS."""

    @abstractmethod
    def _read_result(self, payload: Any) -> Result:
        """The result that the worker stored."""

    def state(self) -> State:
        """Where the job is now."""
        with reachable(self.id):
            meta = self._result.backend.get_task_meta(self.id)
        info = meta.get("result") if meta["status"] == PROGRESS_STATE else None
        return self._read_state(meta["status"], info if isinstance(info, dict) else {})

    def progress(self) -> Iterator[State]:
        """The job's state now and about once a second, and at once when it ends; the last one has ended.

        While it is PROGRESS it says how far the job is.

        Raises JobError: RESULT_EXPIRED or LOST where there is nothing to wait for.
        """
        return self._states(deadline=math.inf)

    def wait(
        self, timeout_s: float | None = None, *, on_progress: Callable[[State], object] | None = None
    ) -> Result:
        """The result, once it is there.

        ``on_progress`` is called on this thread with each new state, the last one included; what it raises
        ends the waiting, and the job goes on.

        Raises JobError: the job's own; TIMEOUT where it is not done in time (it goes on; wait again);
        RESULT_EXPIRED or LOST where there is nothing to wait for.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        told: State | None = None
        if on_progress is not None:
            for state in self._states(deadline):
                if state != told:
                    on_progress(told := state)
        try:
            with reachable(self.id):
                self.check()
                # An app may well wait in a task of its own: its workers are not ours, so none blocks itself.
                remaining_s = None if timeout_s is None else max(0.0, deadline - time.monotonic())
                payload = self._result.get(timeout=remaining_s, disable_sync_subtasks=False)
        except CeleryTimeout:
            raise JobError(
                ErrorCode.TIMEOUT, f"no result within {timeout_s} s; the job goes on, wait again or cancel it"
            ) from None
        except JobError as error:
            raise error from None
        return self._read_result(payload)

    def cancel(self) -> None:
        """Ask for the job to end as CANCELLED; a job that is done already stays as it is."""
        with reachable(self.id):
            if self._records.has_ended(self.id):
                return
            self._records.request_cancel(self.id)
            backend = self._result.backend
            if backend.get_task_meta(self.id)["status"] == states.PENDING:
                # Nobody has begun it, and its queue may be long. Whoever takes it later finds it ended.
                error = JobError(ErrorCode.CANCELLED, "the job was cancelled before it was begun, as asked")
                backend.mark_as_failure(self.id, error)

    def _states(self, deadline: float) -> Iterator[State]:
        """As ``progress``, until the deadline on the clock of ``time.monotonic``."""
        with reachable(self.id):
            self.check()
        while True:
            yield (state := self.state())
            if state.has_ended or time.monotonic() >= deadline:
                return
            # Not Celery's on_message: of handles that are waited for at once, one would hear of all jobs.
            with reachable(self.id), suppress(CeleryTimeout):
                self._result.get(
                    timeout=min(PROGRESS_INTERVAL_S, max(0.0, deadline - time.monotonic())),
                    propagate=False,
                    disable_sync_subtasks=False,
                )

    def check(self) -> None:
        """Raises JobError RESULT_EXPIRED or LOST where there is nothing to wait for."""
        if self._result.backend.get_task_meta(self.id)["status"] == states.PENDING:
            absence = self._records.explain_absence(self.id)
            if absence is not None:
                raise absence


class ForecastHandle(JobHandle[JobState, ForecastResult]):
    """An enqueued forecast."""

    def _read_state(self, name: str, meta: Mapping[str, Any]) -> JobState:
        return JobState(name, meta.get("bars_done"), meta.get("bars_total"))

    def _read_result(self, payload: Any) -> ForecastResult:
        return ForecastResult.model_validate(payload)


class FinetuneHandle(JobHandle[FinetuneState, FinetuneResult]):
    """An enqueued finetuning job."""

    def _read_state(self, name: str, meta: Mapping[str, Any]) -> FinetuneState:
        try:
            return FinetuneState(name, FinetuneProgress.model_validate(dict(meta)))
        except ValidationError:  # of a worker with another form of it; the state itself still counts
            return FinetuneState(name)

    def _read_result(self, payload: Any) -> FinetuneResult:
        return FinetuneResult.model_validate(payload)
