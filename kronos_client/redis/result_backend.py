"""Celery's Redis result backend: one outcome a job, every failure with a code and none with a traceback.

Clients in any language read ``exc_message`` as ``[code, message, field, details]``, whoever caused the
failure: the task, a revocation, or the pool. Overrides what celery 5.7's ``backends/base.py`` calls.
"""

from functools import cached_property
from typing import Any, Final

from celery import states
from celery.backends.redis import RedisBackend
from pydantic_core import to_json

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.connection import refuses_writes
from kronos_client.redis.job_store import JobRecords, Receipt

EXPIRED: Final = "expired"


def lease_token_of(request: Any) -> str:
    """Of the lease that a task put on its request; empty where it runs without one."""
    return str(getattr(request, "lease_token", ""))


class CodedRedisBackend(RedisBackend):
    """The ``redis`` and ``rediss`` backend of our apps."""

    @staticmethod
    def runs_here(job_id: str) -> bool:
        """Whether this process has a job under a lease; a worker that takes leases replaces it."""
        return False

    @staticmethod
    def on_repeated(token: str) -> object:
        """Hears of a lease whose job is another's meanwhile; a worker that counts them replaces it."""

    @cached_property
    def _records(self) -> JobRecords:
        ttl_s: int = self.expires  # type: ignore[attr-defined]
        return JobRecords(self.client, ttl_s, lambda token: self.on_repeated(token))

    def begin(
        self, task_id: str, request: Any, *, lease_s: float = 0.0, content: str = "", **info: Any
    ) -> Receipt | None:
        """Store that a worker has begun a job, with ``info`` on it; None where the job has its outcome.

        In place of Celery's ``track_started``, which says so in a round trip more and learns nothing by it.
        A request that has a ``lease_token`` takes the job's lease for ``lease_s``; ``content`` is the job's
        fingerprint, where what another one sends under its id is to be dropped.
        """
        meta = self._encoded(task_id, info, states.STARTED, None, request)
        key, token = self._result_key(task_id), lease_token_of(request)
        return self._records.begin(task_id, key, meta, lease_token=token, lease_s=lease_s, content=content)

    def lose(self, request: Any) -> None:
        """The process that a job ran in is gone: count it, and let another have the job at once."""
        token = lease_token_of(request)
        if token:
            self._records.release_lease(request.id, token, is_lost=True)

    def tell(self, records: JobRecords, request: Any, state: str, info: Any) -> bool:
        """Store a state that is no outcome over these records' connection, and do not try again."""
        meta = self._encoded(request.id, info, state, None, request)
        key, token = self._result_key(request.id), lease_token_of(request)
        return records.store(request.id, key, meta, is_outcome=False, lease_token=token)

    def finish(self, records: JobRecords, request: Any, state: str, outcome: Any) -> bool:
        """Likewise for a job's outcome, a result or a JobError; whether it counts."""
        meta = self._encoded(request.id, self.encode_result(outcome, state), state, None, request)
        key, token = self._result_key(request.id), lease_token_of(request)
        return records.store(request.id, key, meta, is_outcome=True, lease_token=token)

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Nothing. Celery subscribes to the result of every job that it sends, whether or not one waits.

        Who waits subscribes then, and reads after that what is stored already: nothing is missed.
        """

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **_: Any
    ) -> Any:
        """Store a state unless the job has its outcome: the first one stands, failures included.

        Where the task runs under a lease, only its holder's counts: the script that stores it looks.
        """
        self._records.store(
            task_id,
            self._result_key(task_id),
            self._encoded(task_id, result, state, traceback, request),
            is_outcome=state in states.READY_STATES,
            lease_token=lease_token_of(request),
        )
        return result

    def _encoded(self, task_id: str, result: Any, state: str, traceback: Any, request: Any) -> bytes:
        """The JSON that Celery would store, made ten times faster; a result is thousands of numbers."""
        meta: Any = self._get_result_meta(result, state, traceback, request)  # type: ignore[attr-defined]
        return to_json(meta | {"task_id": task_id})

    def _result_key(self, task_id: str) -> str:
        key: Any = self.get_key_for_task(task_id)
        return str(key, "utf-8")

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        return refuses_writes(exc) or bool(super().exception_safe_to_retry(exc))

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
        if store_result and self.runs_here(task_id):
            self._records.request_cancel(task_id)  # it ends by itself, and says what it leaves
            return
        self.mark_as_failure(task_id, error, request=request, store_result=store_result)
        if store_result and reason != EXPIRED and self._records.is_leased(task_id):
            # Another's lease kept it from being stored, and Celery acknowledges the message all the same. The
            # job's worker is gone, or finds its lease taken away.
            meta = self._encoded(task_id, self.encode_result(error, state), state, None, request)
            self._records.store(task_id, self._result_key(task_id), meta, is_outcome=True, over_lease=True)


def _coded(error: BaseException) -> JobError:
    if isinstance(error, JobError):
        return error
    return JobError(
        ErrorCode.INTERNAL,
        f"the worker failed ({type(error).__name__}); see its log, and report it with the job's id",
    )
