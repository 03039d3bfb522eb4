"""How a long job, a finetuning job or a backtest, runs on its worker: attempts, stops, errors, its result."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.model_info import ResultModel
from kronos_client.redis.job_store import Receipt
from kronos_model.errors import KronosError
from worker.broker.claims import Claim
from worker.deadline import Deadline, late
from worker.process import RETRY_DELAY_S, RetryLater
from worker.training.finetune_process import FinetuneProcess
from worker.training.job_folder import RESULT_FILE, JobFolder, JobNotes

MAX_STARTS_AT_SAVE: Final = 5
"""Starts at one save. They are the only trace of a process that died with its worker."""
CLAIM_LOST: Final = "its claim could not be renewed"


@dataclass(eq=False)
class LongRun(ABC):
    """One delivery of a long job. The task sets ``is_cancelled``, and reads ``progress``, the last report.

    Raises:
        JobError: The job cannot be used.
    """

    parse: ClassVar[Any]
    """Reads the job from its payload and the worker's limits, as a static method."""
    continues: ClassVar[str]
    """How a job that was stopped continues, for the log."""
    killed_too_often: ClassVar[tuple[str, str]]
    """Message and field of a job's error if no start reaches the next save."""

    process: FinetuneProcess
    job_id: str
    payload: object
    fingerprint: str
    receipt: Receipt
    queue: str
    time_limit_s: float

    def __post_init__(self) -> None:
        settings = self.process.settings
        self._began = time.monotonic()
        self._time_limit_s = min(self.time_limit_s, settings.finetune_time_limit_s or math.inf)
        self.is_cancelled = self.receipt.is_cancelled
        self.progress: dict[str, object] | None = None
        self._is_resumed = False  # from what an earlier attempt saved
        self._folder = JobFolder(self.process.model_folder, self.job_id)
        self._job: Any = self.parse(self.payload, settings.limits())
        self._waited_s = self.receipt.waited_s(self._job.submitted_at)
        self._deadline = Deadline.after(self._waited_s, self._job.deadline_s)
        given = (self.queue, self._job.priority, self._job.submitted_at, self.receipt)
        self.process.metrics.observe_job_wait(*given)

    def run(self, claim: Claim) -> dict[str, object]:
        """Work until the job is done. Returns the result as JSON.

        Raises:
            JobError: The job ends with this error.
            RetryLater: Another worker, or this one later, is to continue the job.
        """
        self._claim = claim
        earlier = self._folder.notes(self.fingerprint)
        self._notes = earlier or JobNotes(self.fingerprint, {}, queued_s=max(0.0, self._waited_s))
        if earlier is not None and (result := self._earlier_result()) is not None:
            return result
        if (error := self._ending_error()) is not None:
            raise self._failed(error)
        self._prepare()
        try:
            return self._work()
        except (JobError, KronosError) as failure:
            error = failure if isinstance(failure, JobError) else JobError.from_kronos(failure)
            raise self._failed(error) from None

    def _earlier_result(self) -> dict[str, object] | None:
        """The result of a worker that died before it stored the job's outcome."""
        return self._folder.read(RESULT_FILE)

    def _prepare(self) -> None:  # noqa: B027  a backtest has nothing to prepare
        """Check the job and write its files. An error leaves what earlier attempts saved."""

    @abstractmethod
    def _work(self) -> dict[str, object]:
        """Do the job. Raises as ``run``, or KronosError."""

    @abstractmethod
    def _failed(self, error: JobError) -> JobError:
        """Remove what only a later attempt would need, and return the error for the sender."""

    def _completed(self, kind: Callable[..., ResultModel], **fields: object) -> dict[str, object]:
        """The job's result. A file has it too, for a worker that gets the job again."""
        elapsed_s = time.monotonic() - self._began
        times_s = {
            "queued": self._notes.queued_s,
            "training": self.receipt.worked_s + elapsed_s,  # ignored by a backtest's result
            "total": max(0.0, self._waited_s) + elapsed_s,
        }
        result = kind(
            queue=self.queue,
            worker=self.process.node,
            timings_ms={name: round(time_s * 1000, 3) for name, time_s in times_s.items()},
            num_attempts=self._notes.num_starts,
            resumed=self._is_resumed,
            **fields,
        ).model_dump(mode="json")
        self._folder.write(RESULT_FILE, result)
        return result

    def _note(self, **changes: Any) -> None:
        """Change the job's notes on disk, unless another worker may soon have the job."""
        self._notes = replace(self._notes, **changes)
        if not self._claim.is_running_out:
            self._folder.write_notes(self._notes)

    def _count_start(self) -> None:
        """Count a start before it is made. Raises JobError if there were too many at this save."""
        saved_at_ns = self._folder.saved_at_ns()
        num_starts = self._notes.num_starts_at_save if saved_at_ns == self._notes.saved_at_ns else 0
        if num_starts >= MAX_STARTS_AT_SAVE:
            raise JobError(ErrorCode.OUT_OF_MEMORY, *self.killed_too_often)
        self._note(saved_at_ns=saved_at_ns, num_starts_at_save=num_starts + 1)

    def _uncount_start(self) -> None:
        """Take back the last count: the start did not end because its process was killed."""
        self._note(num_starts_at_save=self._notes.num_starts_at_save - 1)

    def _handed_back(self, error: Exception) -> RetryLater:
        """The end of a start that failed for a reason outside the job."""
        self._uncount_start()
        return RetryLater(str(error), RETRY_DELAY_S)

    def _ending_error(self) -> JobError | None:
        """The error of a job that was cancelled, missed its deadline, or reached its time limit."""
        if self.is_cancelled:
            return JobError(ErrorCode.CANCELLED, "the job was cancelled, as asked")
        if self._deadline.has_passed():
            missed = f"the job was not done within its deadline of {self._job.deadline_s} s"
            return late(missed, "allow more time, or ask for less")
        if self.receipt.worked_s + time.monotonic() - self._began >= self._time_limit_s:
            reached = f"the job took longer than its time limit of {self._time_limit_s:g} s"
            remedy = "raise the job's time_limit or the worker's KRONOS_FINETUNE_TIME_LIMIT_S"
            return JobError(ErrorCode.DEADLINE, f"{reached}; ask for less, or {remedy}")
        return None

    def _reason_to_stop(self) -> JobError | RetryLater | None:
        """What to raise if this worker must stop the job now."""
        if not self._claim.is_safe:
            return self._interrupted(CLAIM_LOST)
        if (error := self._ending_error()) is not None:
            return error
        return self._interrupted("the worker shuts down") if self.process.state == "draining" else None

    def _interrupted(self, why: str) -> RetryLater:
        return RetryLater(f"{self.continues}: {why}")
