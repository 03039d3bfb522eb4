"""Celery's Redis result backend, storing every failure with a code and none with a traceback.

Clients in any language read ``exc_message`` as ``[code, message, field, details]``, whoever caused the
failure: the task, a revocation, or the pool. Overrides what celery 5.7's ``backends/base.py`` calls.
"""

from typing import Any, Final

from celery import states
from celery.backends.redis import RedisBackend

from worker.contract.errors import ErrorCode, JobError

EXPIRED: Final = "expired"


class CodedRedisBackend(RedisBackend):
    """The ``redis`` and ``rediss`` backend of our apps."""

    def _store_result(self, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any) -> Any:
        """Store a state unless the job has its outcome: the first one stands, failures included."""
        if self.has_outcome(task_id):
            return result
        return super()._store_result(task_id, result, state, *args, **kwargs)  # type: ignore[misc]

    def has_outcome(self, task_id: str) -> bool:
        """Whether the job's result or error is stored."""
        meta: Any = self._get_task_meta_for(task_id)  # type: ignore[attr-defined]
        return meta["status"] in states.READY_STATES

    def mark_as_failure(
        self, task_id: str, exc: BaseException, traceback: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """Store a failure. The traceback names paths on the worker's machine: it stays in the log."""
        super().mark_as_failure(task_id, _coded(exc), None, *args, **kwargs)

    def mark_as_revoked(
        self,
        task_id: str,
        reason: str = "",
        request: Any = None,
        store_result: bool = True,
        state: str = states.FAILURE,
    ) -> None:
        """Store a revocation as the failure that it is to whoever waits."""
        if reason == EXPIRED:
            error = JobError(ErrorCode.DEADLINE, "the message expired before a worker took it; add workers")
        else:
            error = JobError(ErrorCode.CANCELLED, "the job was revoked before it was done")
        self.mark_as_failure(task_id, error, request=request, store_result=store_result)


def _coded(error: BaseException) -> JobError:
    if isinstance(error, JobError):
        return error
    return JobError(
        ErrorCode.INTERNAL,
        f"the worker failed ({type(error).__name__}); see its log, and report it with the job's id",
    )
