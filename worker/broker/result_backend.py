"""Celery's Redis result backend: one outcome per job; every failure has a code, and none a traceback.

Clients in any language read ``exc_message`` as ``[code, message, field, details]``. The task, a revocation or
the pool may cause the failure. Overrides methods that celery 5.7's ``backends/base.py`` calls.
"""

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from celery import states
from celery.backends.redis import RedisBackend
from pydantic_core import to_json

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.connection import connect, refuses_writes
from kronos_client.redis.job_store import JobStore, OnRepeated, Receipt
from worker.config import TAKEN_KEY_SETTING

log = logging.getLogger(__name__)

EXPIRED: Final = "expired"


def tag_of(request: Any) -> str:
    """The tag of a request's delivery, which names its claim; empty if there is none."""
    return str((getattr(request, "properties", None) or {}).get("delivery_tag", ""))


class CodedRedisBackend(RedisBackend):
    """The ``redis`` and ``rediss`` backend of our apps."""

    runs_here: Callable[[str], bool] = staticmethod(lambda job_id: False)
    """Whether this process has a claim on a job; a worker that takes claims replaces it."""
    on_repeated: OnRepeated = staticmethod(lambda tag: None)
    """As of ``JobStore``; a worker that counts these replaces it."""

    @cached_property
    def _store(self) -> JobStore:
        app: Any = self.app  # type: ignore[attr-defined]
        ttl_s: int = self.expires  # type: ignore[attr-defined]
        taken_key = app.conf.get(TAKEN_KEY_SETTING)
        # Not Celery's client, which waits for each silent connection in turn.
        return JobStore(connect(app.conf.broker_url), ttl_s, taken_key, lambda tag: self.on_repeated(tag))

    def begin(
        self, task_id: str, request: Any, *, timeout_s: float, content: str = "", **info: Any
    ) -> Receipt | None:
        """Claim a job, and store that a worker has begun it, with ``info``; otherwise as ``JobStore.begin``.

        This replaces Celery's ``track_started``, which needs one more round trip.
        """
        meta = self._encoded(task_id, info, states.STARTED, None, request)
        return self._store.begin(task_id, meta, tag_of(request), timeout_s, content)

    def lose(self, request: Any) -> None:
        """Count that a job's process died, and end its claim."""
        self._store.release(request.id, tag_of(request), is_lost=True)

    def store_by(self, store: JobStore, request: Any, state: str, content: Any) -> bool:
        """Store a state, or an outcome, over this store's connection, once; returns whether it counts."""
        return self._put(store, request.id, self.encode_result(content, state), state, None, request)

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Nothing. Celery would subscribe to the result of every job that it sends.

        A waiting caller subscribes first and then reads the stored state, so it misses nothing.
        """

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **_: Any
    ) -> Any:
        """Store a state unless the job has an outcome: the first outcome stays, also if it is a failure.

        If the job is claimed, only its holder's state counts.
        """
        self._put(self._store, task_id, result, state, traceback, request)
        return result

    def _put(
        self,
        store: JobStore,
        task_id: str,
        content: Any,
        state: str,
        traceback: Any,
        request: Any,
        *,
        over_claim: bool = False,
    ) -> bool:
        return store.store(
            task_id,
            self._encoded(task_id, content, state, traceback, request),
            is_outcome=state in states.READY_STATES,
            tag="" if over_claim else tag_of(request),
            over_claim=over_claim,
        )

    def _encoded(self, task_id: str, result: Any, state: str, traceback: Any, request: Any) -> bytes:
        """The JSON that Celery would store, made ten times faster; a result is thousands of numbers."""
        meta: Any = self._get_result_meta(result, state, traceback, request)  # type: ignore[attr-defined]
        return to_json(meta | {"task_id": task_id})

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        return refuses_writes(exc) or bool(super().exception_safe_to_retry(exc))

    def mark_as_failure(
        self,
        task_id: str,
        exc: BaseException,
        traceback: Any = None,
        request: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Store a failure. The traceback names paths on the worker's machine: it stays in the log.

        Celery sends a job's callbacks and the next task of its chain before it stores the result. If they
        cannot be sent, the result is stored, and only what follows the job fails.
        """
        result = getattr(request, "finished", None)
        if result is not None and (request.callbacks or request.chain):
            log.error("job %s: its callbacks or chain could not be sent: %s", task_id, coded(exc))
            warning = f"The job's callbacks or chain could not be sent: {type(exc).__name__}."
            content = result | {"warnings": [*result["warnings"], warning]}
            self._put(self._store, task_id, content, states.SUCCESS, None, request)
        super().mark_as_failure(task_id, coded(exc), None, request, *args, **kwargs)

    def mark_as_revoked(
        self,
        task_id: str,
        reason: str = "",
        request: Any = None,
        store_result: bool = True,
        state: str = states.FAILURE,
    ) -> None:
        """Store a revocation as a failure, for the callers that wait."""
        if reason == EXPIRED:
            error = JobError(ErrorCode.DEADLINE, "the message expired before a worker took it; add workers")
        else:
            error = JobError(ErrorCode.CANCELLED, "the job was revoked before it was done")
        if store_result and self.runs_here(task_id):
            self._store.request_cancel(task_id)  # the job ends by itself, with its own error
            return
        self.mark_as_failure(task_id, error, request=request, store_result=store_result)
        if store_result and reason != EXPIRED and self._store.is_claimed(task_id):
            # Another worker's claim prevented the store, but Celery still acknowledges the message. That
            # worker is gone, or will find its claim lost.
            content = self.encode_result(error, state)
            self._put(self._store, task_id, content, state, None, request, over_claim=True)


def coded(error: BaseException) -> JobError:
    """The error itself if it has a code, else the one that replaces it; its traceback stays in the log."""
    if isinstance(error, JobError):
        return error
    if isinstance(error, TimeLimitExceeded | SoftTimeLimitExceeded):
        text = "the job took longer than the worker's --time-limit; ask for less, or have it raised"
        return JobError(ErrorCode.DEADLINE, text)
    text = f"the worker failed ({type(error).__name__}); see its log, and report it with the job's id"
    return JobError(ErrorCode.INTERNAL, text)
