"""``kronos.finetune``: one job from the queue to its one outcome, by one worker at a time.

The job's claim is taken as it is begun and renewed until its outcome is stored, under that claim. A worker
that receives the job meanwhile, delivered or submitted a second time, puts it back until the claim would end.
"""

import errno
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from celery import Task, states
from celery.exceptions import Ignore
from redis.exceptions import RedisError, ResponseError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import FINETUNE_TASK, PROGRESS_STATE
from kronos_client.redis.connection import refuses_writes
from kronos_client.redis.job_store import Receipt, fingerprint
from kronos_client.redis.result_backend import tag_of
from worker.app import app
from worker.broker.claims import Claim
from worker.lifecycle import current_process
from worker.tasks.delivery import HELD_MARGIN_S, REQUEUE_DELAY_S, ClaimedRequest, HandedBack
from worker.tasks.payload import job_of
from worker.training.process import FinetuneProcess
from worker.training.run import FinetuneRun, Interrupted

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S: Final = 1.0
STORE_RETRY_S: Final = 1.0
STORE_FOR_S: Final = 600.0
RESULT_REPR_CHARS: Final = 64
FULL_OR_FORBIDDEN: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


@app.task(
    name=FINETUNE_TASK,
    bind=True,
    throws=(JobError,),
    typing=False,
    track_started=False,  # the result backend's begin does it
    resultrepr_maxsize=RESULT_REPR_CHARS,
    Request=ClaimedRequest,
)
def finetune(self: "Task[Any, Any]", /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Train and register one model; its result as JSON, or JobError.

    Where nothing is wrong with the job, it goes back to the queue: another worker goes on with it.
    """
    return _Delivery(self, current_process()).answer(args, kwargs)


class NotNow(Exception):
    """Nothing is wrong with the job; something that this worker needs is away for a moment."""


class _Delivery:
    """One delivery of one job."""

    def __init__(self, task: "Task[Any, Any]", process: FinetuneProcess) -> None:
        self._process = process
        self._request: Any = task.request
        self._backend: Any = task.backend
        self._job_id = str(task.request.id)
        self._run: FinetuneRun | None = None
        self._told: dict[str, Any] | None = None
        self._told_at = float("-inf")
        self._tag = tag_of(task.request)

    def answer(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The task's answer: a result, or one of the exceptions that Celery knows."""
        try:
            receipt, claim = self._begin(_content(kwargs.get("job")))
            try:
                result = self._train(job_of(args, kwargs), receipt, claim)
            except JobError as error:
                self._store(states.FAILURE, error)
                raise
            self._store(states.SUCCESS, result)
        except Interrupted as interrupted:
            raise self._handed_back(str(interrupted)) from None
        except NotNow as error:
            raise self._handed_back(str(error), REQUEUE_DELAY_S) from None
        except RedisError as error:
            raise self._handed_back(f"{type(error).__name__}: {error}", REQUEUE_DELAY_S) from None
        finally:
            self._process.training = None
            self._process.claims.drop(self._tag)
        return result

    def _begin(self, content: str) -> tuple[Receipt, Claim]:
        """Take the claim; ``content`` is the job's fingerprint. Raises HandedBack while another has it."""
        asked_at = time.monotonic()
        try:
            receipt: Receipt | None = self._backend.begin(
                self._job_id,
                self._request,
                timeout_s=self._process.claims.timeout_s,
                content=content,
                pid=os.getpid(),
                hostname=self._process.node,
            )
        except ResponseError as error:
            if refuses_writes(error):  # as good as away
                raise NotNow(str(error)) from error
            raise
        if receipt is None:
            # Delivered again after it was done, or submitted twice: the one outcome stands.
            raise Ignore
        if receipt.held_s > 0:
            raise HandedBack("it is trained already", delay_s=receipt.held_s + HELD_MARGIN_S)
        return receipt, self._process.claims.hold(self._job_id, self._tag, asked_at, self._look_and_tell)

    def _train(self, payload: Any, receipt: Receipt, claim: Claim) -> dict[str, Any]:
        try:
            self._run = FinetuneRun(self._process, self._job_id, payload, receipt, self._queue())
            return self._run.run(lambda: claim.is_safe, lambda: claim.is_running_out)
        except OSError as error:
            if error.errno not in FULL_OR_FORBIDDEN:  # a network file system, away for a moment
                raise NotNow(f"the folder of models does not answer: {error}") from error
            raise JobError(
                ErrorCode.DISK_FULL,
                f"the folder of models cannot be written: {error.strerror}; make room there",
            ) from None
        except (JobError, Interrupted, NotNow, RedisError):
            raise
        except Exception:  # the last line of defence: an uncoded error would leak a traceback to the caller
            log.exception("job %s failed on a defect", self._job_id)
            raise JobError(
                ErrorCode.INTERNAL, "a defect in the worker; report it with the job's id"
            ) from None

    def _store(self, state: str, outcome: Any) -> None:
        """Store the outcome under the claim; Celery finds it stored.

        Not left to Celery, which would acknowledge a job also where its outcome was refused.
        """
        until = time.monotonic() + STORE_FOR_S
        while True:
            try:
                if self._backend.finish(self._process.job_store, self._request, state, outcome):
                    return
                if self._process.job_store.has_ended(self._job_id):
                    raise Ignore
                raise Interrupted("another worker has the job")
            except RedisError as error:
                if time.monotonic() > until:
                    raise
                log.warning("job %s: its outcome cannot be stored, trying again: %s", self._job_id, error)
                time.sleep(STORE_RETRY_S)

    def _handed_back(self, reason: str, delay_s: float = 0.0) -> HandedBack:
        self._process.claims.release(self._job_id, self._tag)
        return HandedBack(reason, delay_s=delay_s)

    def _look_and_tell(self) -> None:
        """Look whether the job is to be cancelled, and store how far it is."""
        run = self._run
        if run is None:
            return
        if self._process.job_store.is_cancelled(self._job_id):
            run.is_cancelled = True
        now = time.monotonic()
        # What does not change for long must not expire with the result's life.
        is_old = now - self._told_at > self._process.settings.result_ttl_s / 4
        if run.progress is None or now - self._told_at < PROGRESS_INTERVAL_S:
            return
        if run.progress != self._told or is_old:
            self._told, self._told_at = run.progress, now
            self._backend.tell(self._process.job_store, self._request, PROGRESS_STATE, self._told)

    def _queue(self) -> str:
        delivery = self._request.delivery_info or {}
        return str(delivery.get("routing_key") or self._process.queue)


def _content(job: Any) -> str:
    """Its fingerprint; empty for what is no job, which is answered whatever its id."""
    return fingerprint(job) if isinstance(job, Mapping) else ""
