"""Celery's Redis result backend: one outcome per job; every failure has a code, and none a traceback.

Clients in any language read ``exc_message`` as ``[code, message, field, details]``. The task, a revocation or
the pool may cause the failure. Overrides methods that celery 5.7's ``backends/base.py`` calls.
"""

import logging
from collections.abc import Callable
from typing import Any

from celery import states
from celery.app.task import Context
from celery.backends.redis import RedisBackend

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.stored import encode_state
from kronos_client.redis.job_store import Ending, JobStore
from worker.broker.connecting import primary_options
from worker.broker.outcomes import Outcomes

log = logging.getLogger(__name__)


def tag_of(request: object) -> str:
    """The tag of a request's delivery, which names its claim; empty if there is none."""
    return str((getattr(request, "properties", None) or {}).get("delivery_tag", ""))


class CodedRedisBackend(RedisBackend):
    """The ``redis`` and ``rediss`` backend of our apps."""

    runs_here: Callable[[str], bool] = staticmethod(lambda job_id: False)
    """Whether this process has a claim on a job; a worker that takes claims replaces it."""

    store: JobStore
    outcomes: Outcomes
    """The process's own, which it sets: Celery's client waits for each silent connection in turn."""

    def on_task_call(self, producer: object, task_id: str) -> None:
        """Nothing. Celery would subscribe to the result of every job that it sends.

        A waiting caller subscribes first and then reads the stored state, so it misses nothing.
        """

    def store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **_: Any
    ) -> Any:
        """Store a state. An outcome ends the job; the first one stays, also if it is a failure.

        If the job is claimed, only its holder's state counts. A task waits here until Redis accepts its
        outcome; Celery's own threads get Redis's error, and the message is delivered again.
        """
        if getattr(request, "has_ended", False):
            return result
        content = self.encode_result(result, state)
        encoded, tag = encode_state(task_id, state, content, request), tag_of(request)
        if state not in states.READY_STATES:
            self.store.store_state(task_id, encoded, tag)
            return result
        app: Any = self.app  # type: ignore[attr-defined]
        task, waits = str(getattr(request, "task", "")), app.current_worker_task is not None
        self.outcomes.end(Ending(task_id, encoded, tag), task=task, outcome=result, waits=waits)
        return result

    def mark_as_failure(
        self,
        task_id: str,
        exc: BaseException,
        traceback: object = None,
        request: Context | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Store a failure. The traceback names paths on the worker's machine: it stays in the log.

        Celery sends a job's callbacks and the next task of its chain before it stores the result. If they
        cannot be sent, the result is stored, and only what follows the job fails.
        """
        result = getattr(request, "finished", None)
        if request is not None and result is not None and (request.callbacks or request.chain):
            log.error("job %s: its callbacks or chain could not be sent: %s", task_id, coded(exc))
            warning = f"The job's callbacks or chain could not be sent: {type(exc).__name__}."
            content = result | {"warnings": [*result["warnings"], warning]}
            self.store_result(task_id, content, states.SUCCESS, request=request)
            request.update(has_ended=True)
        super().mark_as_failure(task_id, coded(exc), None, request, *args, **kwargs)

    def mark_as_revoked(
        self,
        task_id: str,
        reason: str = "",
        request: Context | None = None,
        store_result: bool = True,
        state: str = states.FAILURE,
    ) -> None:
        """Store a revocation as a failure, for the callers that wait. No message reaches Celery expired."""
        if store_result:
            self.store.request_cancel(task_id)  # for a worker that has the job, this one included
        if store_result and not self.runs_here(task_id):
            error = JobError(ErrorCode.CANCELLED, "the job was revoked before it was done")
            self.mark_as_failure(task_id, error, request=request, store_result=store_result)


class CodedSentinelBackend(CodedRedisBackend):
    """The same behind Sentinel. Celery's own backend for it does not know ``credential_provider``."""

    def _get_pool(self, **params: Any) -> Any:
        return super()._get_pool(**params | primary_options())  # type: ignore[misc]


def coded(error: BaseException) -> JobError:
    """The error itself if it has a code, else the one that replaces it; its traceback stays in the log."""
    if isinstance(error, JobError):
        return error
    text = f"the worker failed ({type(error).__name__}); see its log, and report it with the job's id"
    return JobError(ErrorCode.INTERNAL, text)
