"""JobHandle: an enqueued job, from its submitter's side; one kind for each task. No torch."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from celery import states
from pydantic import ValidationError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune_results import FinetuneProgress, FinetuneResult
from kronos_client.contract.names import PROGRESS_STATE
from kronos_client.contract.results import ForecastResult
from kronos_client.core.result_store import Outcome, Stored, reachable

PROGRESS_INTERVAL_S: Final = 1.0
"""As often as workers tell how far a job is."""

LOOK_INTERVAL_S: Final = 2.0
"""As often as who waits looks whether there is anything to wait for still, in case nobody tells it."""


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


def timed_out(timeout_s: float | None) -> JobError:
    """What whoever waited so long is told."""
    message = f"no result within {timeout_s} s; the job goes on, wait again or cancel it"
    return JobError(ErrorCode.TIMEOUT, message)


class JobHandle(ABC, Generic[State, Result]):
    """An enqueued job. ``queue`` is None where somebody else put it there."""

    def __init__(self, job_id: str, queue: str | None, outcome: Outcome) -> None:
        self.id = job_id
        self.queue = queue
        self._outcome = outcome

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
            stored = self._outcome.read()
        info = stored.value if stored.status == PROGRESS_STATE else None
        return self._read_state(stored.status, info if isinstance(info, dict) else {})

    def progress(self) -> Iterator[State]:
        """The job's state now and about once a second, and at once when it ends; the last one has ended.

        While it is PROGRESS it says how far the job is.

        Raises JobError: RESULT_EXPIRED or LOST where there is nothing to wait for.
        """
        return self._states(deadline=math.inf)

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        on_progress: Callable[[State], object] | None = None,
        forget: bool = False,
    ) -> Result:
        """The result, once it is there.

        ``on_progress`` is called on this thread with each new state, the last one included; what it raises
        ends the waiting, and the job goes on. With ``forget`` the result is deleted once it was read.

        Raises JobError: the job's own; TIMEOUT where it is not done in time (it goes on; wait again);
        RESULT_EXPIRED or LOST where there is nothing to wait for, or no longer.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        told: State | None = None
        if on_progress is not None:
            for state in self._states(deadline):
                if state != told:
                    on_progress(told := state)
        while True:
            self.check()
            remaining_s = max(0.0, deadline - time.monotonic())
            with reachable(self.id):
                # In slices: what is stored is read at the start of each, also where the connection on which
                # it would have been told was lost.
                stored = self._outcome.wait(min(LOOK_INTERVAL_S, remaining_s))
            if stored is not None:
                break
            if remaining_s <= LOOK_INTERVAL_S:
                raise timed_out(timeout_s)
        result = self._result_of(stored)
        if forget:
            with suppress(JobError):  # what cannot be deleted now expires by itself
                self.forget()
        return result

    def peek(self) -> Result | None:
        """The result where it is there already, None where it is still to come.

        Raises JobError: the job's own; RESULT_EXPIRED or LOST where there is nothing to wait for.
        """
        with reachable(self.id):
            stored = self._outcome.read()
        if stored.has_ended:
            return self._result_of(stored)
        self._check_absence(stored)
        return None

    def forget(self) -> bool:
        """Delete the result from Redis; False where there is none (yet), or only an error.

        The job stays done: who reads its result now, or submits it again under its id, gets RESULT_EXPIRED
        until the result would have expired.
        """
        with reachable(self.id):
            return self._outcome.forget()

    def cancel(self) -> None:
        """Ask for the job to end as CANCELLED; a job that is done already stays as it is."""
        with reachable(self.id):
            self._outcome.cancel()

    def check(self) -> None:
        """Raises JobError RESULT_EXPIRED or LOST where there is nothing to wait for."""
        with reachable(self.id):
            stored = self._outcome.read()
        self._check_absence(stored)

    def _check_absence(self, stored: Stored) -> None:
        if stored.status == states.PENDING:
            with reachable(self.id):
                absence = self._outcome.explain_absence()
            if absence is not None:
                raise absence

    def _result_of(self, stored: Stored) -> Result:
        """Of a job that has ended; raises its error."""
        if stored.status != states.SUCCESS:
            raise stored.value from None
        return self._read_result(stored.value)

    def _states(self, deadline: float) -> Iterator[State]:
        """As ``progress``, until the deadline on the clock of ``time.monotonic``."""
        while True:
            self.check()
            yield (state := self.state())
            if state.has_ended or time.monotonic() >= deadline:
                return
            with reachable(self.id):
                self._outcome.wait(min(PROGRESS_INTERVAL_S, max(0.0, deadline - time.monotonic())))


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
