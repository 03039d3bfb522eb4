"""``kronos.forecast``: one job from the queue to its one outcome.

``ForecastJobs`` computes the jobs, without a thread of Celery's pool for each. Only a job with callbacks or a
chain has such a thread, in which Celery's own tracer sends them.
"""

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache, partial
from typing import Any, Final

from celery import states
from celery.app.task import Context
from celery.exceptions import Ignore
from celery.worker import state
from redis.exceptions import RedisError

from kronos_client.contract.errors import JobError
from kronos_client.contract.jobs import read_job
from kronos_client.contract.names import CELERY_PRIORITIES, FORECAST_TASK, PROGRESS_STATE
from kronos_client.contract.results import ForecastProgress, ForecastResult
from kronos_client.core.stored import encode_failure, encode_state
from kronos_client.feeds.job import FeedJob, is_feed_job
from kronos_client.redis.connection import AWAY
from kronos_client.redis.job_store import Begun, Ended, Ending, Receipt
from kronos_client.redis.queues import list_key
from worker.app import app
from worker.broker import transport
from worker.broker.claims import Claim
from worker.broker.outcomes import store_health
from worker.broker.result_backend import coded
from worker.broker.service_order import needs_thread
from worker.celery_types import AnyTask, Body
from worker.deadline import Deadline
from worker.inference.engine_thread import EngineDied, JobRun
from worker.inference.executor import Computation
from worker.inference.forecast_process import ForecastProcess
from worker.inference.isolation import IsolatedRun
from worker.monitoring.tracing import AttemptTrace
from worker.process import RETRY_DELAY_S, Jobs, RetryLater
from worker.tasks.attempt import JOB_TASK, Attempt, ClaimedRequest, Requeued, einfo_of, job_of

log = logging.getLogger(__name__)
task_log = logging.getLogger("celery.app.trace")
"""Celery's own, for the lines that it writes of other tasks."""

CHECK_INTERVAL_S: Final = 1.0
MAX_AT_ONCE: Final = 64

Outcome = ForecastResult | dict[str, object] | JobError
"""The isolated process gives its result as JSON."""


class ForecastAttempt(Attempt):
    """One delivery of a forecast job, from its claim to its outcome or back to the queue.

    The claim is kept until the outcome is stored. A job whose earlier attempts ended with their processes is
    computed in isolation. All methods are called on the thread of ``ForecastJobs.run``. An error that
    ``begun``, ``advance`` or ``check`` raises is for ``fail``.

    Args:
        context: Celery's context of the request.
        request: Celery's request, if no thread of its pool waits for the job.
        waiter: Gets the result, or the exception that Celery handles, if one does.
    """

    _process: ForecastProcess

    def __init__(
        self,
        jobs: "ForecastJobs",
        context: Any,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        request: Any = None,
        waiter: Future[dict[str, object]] | None = None,
    ) -> None:
        super().__init__(context, jobs.process)
        self._jobs = jobs
        self._arguments = args, kwargs
        self._celery_request, self._waiter = request, waiter
        self._feed: FeedJob | None = None
        if is_feed_job(job := kwargs.get("job")):
            source = list_key(self._queue, CELERY_PRIORITIES[self._priority])
            recorded = jobs.process.server.models.recorded_coverage
            self._feed = FeedJob(jobs.process.feeds, job, self.job_id, source, recorded)
        self._claim: Claim | None = None
        self._work: Computation | IsolatedRun | None = None  # while the job is computed
        self._began_at = time.monotonic()

    def begun(self, answer: Begun | JobError | RedisError, asked_at: float) -> None:
        """Start the job, unless this delivery may not."""
        receipt, self._claim = self._claimed(answer, asked_at)
        self._began_at = time.monotonic()
        if self._celery_request is not None:
            self._celery_request.on_accepted(os.getpid(), self._began_at)
        self._start(receipt)
        self.advance()

    def advance(self) -> None:
        """Go on as far as possible."""
        if self._work is not None and self._work.advance():
            self._settle(self._work.result())

    def check(self, is_cancelled: bool) -> None:
        """Cancel the job or give it up if it must end; otherwise go on."""
        if self._work is None or self._claim is None:
            return
        if self._claim.is_taken_away:
            raise Ignore
        if time.monotonic() > self._process.hand_back_at:
            raise RetryLater("the worker shuts down, and the job was not done in time")
        if is_cancelled:
            self._work.cancel()
        self.advance()  # a model that loads, or an engine that died

    def new_progress(self) -> ForecastProgress | None:
        """What was done since the last call."""
        return None if self._work is None else self._work.new_progress()

    def fail(self, error: Exception) -> None:
        """End by an error: an outcome, or a way back to the queue if the job is not at fault."""
        match error:
            case EngineDied():
                self.leave(self._requeued(str(error), is_lost=error.was_inside))
            case RetryLater():
                self.leave(self._requeued(str(error), error.delay_s))
            case RedisError():
                self.leave(self._requeued(f"{type(error).__name__}: {error}", RETRY_DELAY_S))
            case Ignore() | Requeued():
                self.leave(error)
            case JobError():
                self._settle(error)
            case _:  # an error without a code would send its traceback to the caller
                log.error("job %s failed because of a defect in this software", self.job_id, exc_info=error)
                self._settle(coded(error))

    def leave(self, error: Exception) -> None:
        """End this attempt without an outcome: by Ignore or Requeued."""
        self.trace.ended(error)
        self._close()
        self._jobs.forget(self)
        if self._waiter is not None:
            self._waiter.set_exception(error)
            return
        self._process.claims.drop(self.tag)
        if isinstance(error, Requeued) and store_health.problem is None:  # else one line a minute says that
            log.info("job %s goes back to the queue: %s", self.job_id, error)
        self._celery_request.on_success((True, einfo_of(error), 0.0))

    def _start(self, receipt: Receipt) -> None:
        payload, jobs = job_of(*self._arguments), self._jobs
        if self._feed is not None:
            payload = or_later(self._feed.take)
            if payload is None:
                self._settle(None)
                return
        job = read_job(payload, self._process.limits)
        self.trace.began(job.submitted_at)
        waited_s = receipt.waited_s(job.submitted_at)
        latest_s = waited_s + self._time_limit_s
        if latest_s < (job.deadline_s or math.inf):
            job = job.model_copy(update={"deadline_s": latest_s})
        metrics = self._process.metrics
        metrics.observe_job_wait(self._queue, self._priority, job.submitted_at, receipt)
        on_change = partial(jobs.changed, self)
        if receipt.is_suspect:
            given = (self._process, self.job_id, self.tag, payload, receipt, self._queue)
            self._work = IsolatedRun(*given, Deadline.after(waited_s, job.deadline_s), on_change)
        else:
            about = (self.job_id, job, receipt, self._queue, self._priority)
            self._work = Computation(self._process.server, *about, on_change, jobs.runs.extend)

    def _settle(self, outcome: Outcome | None) -> None:
        """End by a result or an error. A feed's job without series has neither."""
        self._close()
        if self._feed is not None:
            try:
                outcome = or_later(self._feed.end, outcome)
                self._process.metrics.observe_scores(self._feed.name, self._feed.scores, self._feed.drifts)
            except RetryLater as later:
                self.leave(self._requeued(str(later), later.delay_s))
                return
            except JobError as error:  # Redis has what another program wrote
                outcome = error
        assert outcome is not None
        self.trace.computed(outcome)
        if self._waiter is not None:
            self._jobs.forget(self)
            self.trace.ended()
            if isinstance(outcome, JobError):
                self._waiter.set_exception(outcome)
            else:
                as_json = outcome if isinstance(outcome, dict) else outcome.model_dump(mode="json")
                self._waiter.set_result(as_json)
            return
        if isinstance(outcome, JobError):
            encoded = encode_failure(self.job_id, outcome)
        else:
            encoded = encode_state(self.job_id, states.SUCCESS, outcome, self._request)
        self._process.outcomes.put(
            Ending(self.job_id, encoded, self.tag),
            partial(self._ended, outcome),
            task=FORECAST_TASK,
            outcome=outcome,
        )

    def _ended(self, outcome: Outcome, answer: Ended | RedisError) -> None:
        """The outcome is stored, or it will not be: then another worker has the job, or will get it."""
        self._jobs.forget(self)
        self._process.claims.drop(self.tag)
        if answer == "stored":
            self.trace.ended()
        else:  # another attempt's outcome stands
            self.trace.ended(answer if isinstance(answer, RedisError) else Ignore(answer))
        request, runtime_s = self._celery_request, time.monotonic() - self._began_at
        if isinstance(answer, RedisError) or answer == "held":
            state.task_ready(request)
        elif isinstance(outcome, JobError):
            task_log.info("Task %s[%s] raised expected: %r", request.name, self.job_id, outcome)
            request.on_success((True, einfo_of(outcome), runtime_s))
        else:
            facts: Any = outcome
            if isinstance(outcome, ForecastResult):
                facts = outcome.model_dump(include={"model", "device"})
            summary = f"by {facts['model']['id']} on {facts['device']}" if "model" in facts else "nothing new"
            task_log.info("Task %s[%s] succeeded in %ss: %s", request.name, self.job_id, runtime_s, summary)
            request.on_success((False, summary, runtime_s))

    def _close(self) -> None:
        if self._work is not None:
            self._work.close()
            self._work = None  # it refers to this: its tensors would wait for Python's collector


class ForecastJobs(Jobs):
    """The forecast jobs that this worker holds: begun, computed and ended in batches, on one thread.

    That is the thread of Celery's event loop, which waits for nothing but Redis's answers. The engine thread
    computes. ``add`` and ``changed`` may be called from any thread.
    """

    def __init__(self, process: ForecastProcess) -> None:
        self.process = process
        self.runs: list[JobRun] = []  # for the engine thread, at the end of the round
        self._received: deque[ForecastAttempt] = deque()
        self._changed: deque[ForecastAttempt] = deque()
        self._begun: dict[str, ForecastAttempt] = {}  # by the delivery's tag
        self._running = threading.Lock()
        self._begin_at = self._check_at = 0.0  # by time.monotonic
        self.busy_s, self._ran_at, self._was_busy = 0.0, 0.0, False

    def __len__(self) -> int:
        return len(self._received) + len(self._begun)

    def add(self, attempt: ForecastAttempt) -> None:
        """Take a job that was received."""
        self._received.append(attempt)
        transport.message_consumer().wake()

    def changed(self, attempt: ForecastAttempt) -> None:
        """Note that a job may go on."""
        self._changed.append(attempt)
        transport.message_consumer().wake()

    def forget(self, attempt: ForecastAttempt) -> None:
        """A job has ended here: there is room for another."""
        self._begun.pop(attempt.tag, None)
        transport.message_consumer().wake()

    def run(self) -> None:
        """Begin, go on with and end jobs, as far as that is possible now."""
        if not self._running.acquire(blocking=False):
            return  # another thread does it
        now = time.monotonic()
        self.busy_s = (self.busy_s or 0.0) + (now - self._ran_at) * self._was_busy
        self._ran_at = now
        try:
            if time.monotonic() >= self._check_at:
                self._check_at = time.monotonic() + CHECK_INTERVAL_S
                self._check()
            self._begin()
            for _ in range(min(len(self._changed), MAX_AT_ONCE)):
                attempt = self._changed.popleft()
                _go_on(attempt, attempt.advance)
        finally:
            if self.runs:
                self.process.server.engine_thread.submit(tuple(self.runs))
                self.runs.clear()
            self._was_busy = len(self) > 0
            self._running.release()
        if self._changed or (self._received and time.monotonic() >= self._begin_at):
            transport.message_consumer().wake()

    def _begin(self) -> None:
        """Claim received jobs, and start them."""
        asked_at, process = time.monotonic(), self.process
        if not self._received or asked_at < self._begin_at:
            return
        batch = [self._received.popleft() for _ in range(min(len(self._received), MAX_AT_ONCE))]
        try:
            beginnings = [attempt.beginning() for attempt in batch]
            answers = process.job_store.begin_all(beginnings, process.claims.timeout_s, process.node)
        except RedisError as error:
            store_health.refused(error)
            if process.state == "draining":
                for attempt in batch:
                    attempt.leave(Requeued(f"{type(error).__name__}: {error}"))
            else:  # they stay here: another worker would get the same answer
                self._received.extendleft(reversed(batch))
                self._begin_at = asked_at + RETRY_DELAY_S
            return
        AttemptTrace.taken_together([attempt.trace for attempt in batch])
        for attempt, answer in zip(batch, answers, strict=True):
            if isinstance(answer, RedisError):
                store_health.refused(answer)
            self._begun[attempt.tag] = attempt
            _go_on(attempt, attempt.begun, answer, asked_at)

    def _check(self) -> None:
        """What is due about once a second: cancellations, hand-overs, progress."""
        attempts = list(self._begun.values())
        cancelled: set[str] = set()
        store = self.process.job_store
        try:
            cancelled = store.cancelled([attempt.job_id for attempt in attempts])
        except RedisError as error:
            log.warning("Redis failed, cancellations are noticed late: %s", error)
        reported = []
        for attempt in attempts:
            _go_on(attempt, attempt.check, attempt.job_id in cancelled)
            if (progress := attempt.new_progress()) is not None:
                state = encode_state(attempt.job_id, PROGRESS_STATE, progress.as_json())
                reported.append(Ending(attempt.job_id, state, attempt.tag))
        try:
            for first in range(0, len(reported), MAX_AT_ONCE):
                store.store_states(reported[first : first + MAX_AT_ONCE])
        except RedisError as error:
            log.warning("the jobs' progress could not be stored: %s", error)


def or_later(call: Callable[..., Any], *args: object) -> Any:
    """A call's answer. Raises RetryLater if Redis gives none."""
    try:
        return call(*args)
    except JobError as error:
        if error.code not in AWAY:
            raise
        raise RetryLater(str(error.__cause__ or error.message), RETRY_DELAY_S) from None


def _go_on(attempt: ForecastAttempt, call: Callable[..., object], *args: object) -> None:
    """Make a call for one job. An error ends this job, and a defect in its end does not harm the others."""
    try:
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001  ``fail`` logs those without a code
            attempt.fail(error)
    except Exception:
        log.exception("job %s: it could not go on because of a defect", attempt.job_id)


@cache
def forecast_jobs() -> ForecastJobs:
    """The forecast jobs of this process."""
    process = ForecastProcess.current()
    process.jobs = jobs = ForecastJobs(process)
    return jobs


class ForecastRequest(ClaimedRequest):
    """Celery's request (5.7) for a forecast."""

    request_dict: dict[str, object]
    _payload: Body

    def hand_over(self) -> bool:
        """Have the job computed without a thread; False if it needs one. The pool calls it."""
        if needs_thread(self._payload):
            return False
        args, kwargs, _ = self._payload
        jobs, context = forecast_jobs(), Context(self.request_dict)
        jobs.add(ForecastAttempt(jobs, context, args, kwargs, request=self))
        return True


@app.task(name=FORECAST_TASK, **JOB_TASK | {"Request": ForecastRequest})
def forecast(self: AnyTask, /, *args: object, **kwargs: object) -> dict[str, object]:
    """Wait for one job, which has callbacks or a chain. Returns its result as JSON, or raises JobError."""
    jobs, waiter = forecast_jobs(), Future[dict[str, object]]()
    jobs.add(ForecastAttempt(jobs, self.request, args, kwargs, waiter=waiter))
    result = waiter.result()
    self.request.update(finished=result)  # for the result backend
    return result
