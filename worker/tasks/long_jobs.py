"""``kronos.finetune`` and ``kronos.backtest``: one job from the queue to its one outcome.

A worker claims the job when it begins, and renews the claim until the outcome is stored. If another worker
receives the job meanwhile, it puts the job back until the claim would end.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from celery.exceptions import Ignore
from redis.exceptions import RedisError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import BACKTEST_TASK, FINETUNE_TASK, PROGRESS_STATE
from kronos_client.core.stored import encode_state
from kronos_client.redis.message import fingerprint
from kronos_model.atomic_write import NO_ROOM
from worker.app import app
from worker.broker.outcomes import store_health
from worker.broker.result_backend import coded
from worker.celery_types import AnyTask
from worker.process import RETRY_DELAY_S, RetryLater
from worker.tasks.attempt import JOB_TASK, Attempt, Requeued, job_of
from worker.training.backtest_run import BacktestJobRun
from worker.training.finetune_process import FinetuneProcess
from worker.training.finetune_run import FinetuneRun
from worker.training.long_run import LongRun

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S: Final = 1.0


class LongAttempt(Attempt):
    """One delivery of a finetuning job or backtest, which ``make_run`` runs."""

    _process: FinetuneProcess

    def __init__(self, request: Any, process: FinetuneProcess, make_run: Callable[..., LongRun]) -> None:
        super().__init__(request, process)
        self._make_run = make_run
        self._run: LongRun | None = None
        self._reported: dict[str, object] | None = None
        self._reported_at = float("-inf")

    def answer(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The task's answer: a result, or one of the exceptions that Celery handles."""
        job = kwargs.get("job")
        self._request.trace = self.trace  # ``end_claim`` ends it, once the outcome is stored
        try:
            # What is not a job has no fingerprint: it gets its error even if the id is in use.
            content = fingerprint(job) if isinstance(job, Mapping) else ""
            asked_at, process = time.monotonic(), self._process
            beginnings = [self.beginning(content)]
            (begun,) = process.job_store.begin_all(beginnings, process.claims.timeout_s, process.node)
            receipt, claim = self._claimed(begun, asked_at, self._check_and_report)
            self.trace.began(None)
            known = (self._process, self.job_id, job_of(args, kwargs), content, receipt, self._queue)
            self._run = self._make_run(*known, self._time_limit_s)
            return self._run.run(claim)
        except RetryLater as later:
            raise self._requeued(str(later), later.delay_s) from None
        except RedisError as error:
            if self._run is None:
                store_health.refused(error)
            raise self._requeued(f"{type(error).__name__}: {error}", RETRY_DELAY_S) from None
        except OSError as error:
            if error.errno not in NO_ROOM:  # perhaps a network file system is away for a moment
                reason = f"the model folder does not answer: {error}"
                raise self._requeued(reason, RETRY_DELAY_S) from error
            text = f"the model folder cannot be written: {error.strerror}; make room there or permit writing"
            raise JobError(ErrorCode.DISK_FULL, text) from None
        except (Ignore, Requeued, JobError):
            raise
        except Exception as error:  # an error without a code would send its traceback to the caller
            log.exception("job %s failed because of a defect in this software", self.job_id)
            raise coded(error) from None
        finally:
            self._process.training = None

    def _check_and_report(self) -> None:
        run = self._run
        if run is None:
            return
        if self._process.job_store.is_cancelled(self.job_id):
            run.is_cancelled = True
        now = time.monotonic()
        # Progress that has not changed for long is stored again, so that it does not expire.
        is_old = now - self._reported_at > self._process.settings.result_ttl_s / 4
        if run.progress is None or now - self._reported_at < PROGRESS_INTERVAL_S:
            return
        if run.progress != self._reported or is_old:
            self._reported, self._reported_at = run.progress, now
            state = encode_state(self.job_id, PROGRESS_STATE, run.progress)
            self._process.job_store.store_state(self.job_id, state, self.tag)


@app.task(name=FINETUNE_TASK, **JOB_TASK)
def finetune(self: AnyTask, /, *args: object, **kwargs: object) -> dict[str, object]:
    """Train and register one model. Returns its result as JSON, or raises JobError.

    If the job itself is not at fault, it goes back to the queue, and another worker continues it.
    """
    return LongAttempt(self.request, FinetuneProcess.current(), FinetuneRun).answer(args, kwargs)


@app.task(name=BACKTEST_TASK, **JOB_TASK)
def backtest(self: AnyTask, /, *args: object, **kwargs: object) -> dict[str, object]:
    """Run one backtest; otherwise as ``finetune``."""
    return LongAttempt(self.request, FinetuneProcess.current(), BacktestJobRun).answer(args, kwargs)
