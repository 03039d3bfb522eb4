"""FakeForecastClient, FakeAsyncForecastClient: the clients for an app's own tests, without Redis and workers.

They refuse what the real ones refuse, with the same errors. What they accept ends at once with a made-up
result of the right form, the same for the same job and seed. Such as:

    def test_my_app():
        client = FakeForecastClient()
        client.refuse_next(JobError("QUEUE_FULL", "full", None, {"retry_after_s": 1}))
        ...
        assert client.jobs["my-id"]["pred_len"] == 24
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from celery import states

from kronos_client.aio import AsyncForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import parse_finetune_job
from kronos_client.contract.finetune_results import FinetuneResult
from kronos_client.contract.jobs import parse_job
from kronos_client.contract.names import (
    CPU_FINETUNE_QUEUE,
    CPU_QUEUE,
    FORECAST_TASK,
    PROGRESS_STATE,
    Priority,
)
from kronos_client.contract.results import ForecastResult
from kronos_client.contract.worker_status import WORKER_STATUS, AnyWorkerStatus, State
from kronos_client.core.async_result_events import AsyncEndings
from kronos_client.core.base import BaseClient
from kronos_client.core.forgetting import FORGOTTEN
from kronos_client.core.result_events import Endings
from kronos_client.core.result_store import NOT_BEGUN, Outcome, Stored
from kronos_client.core.stand_in import STAND_IN, stand_in_finetuning, stand_in_forecast
from kronos_client.redis.job_store import fingerprint
from kronos_client.settings import ClientSettings

__all__ = ["FakeAsyncForecastClient", "FakeForecastClient", "fake_worker"]

NOTHING: Final = Stored(states.PENDING, None)

MAX_CONTEXT: Final = 512
"""Bars that the fake's model can see, as most models can."""
RETRY_AFTER_S: Final = 1
"""What a full queue answers."""


def fake_worker(queue: str = CPU_QUEUE, state: State = "ready", **fields: Any) -> AnyWorkerStatus:
    """A worker's announcement; ``fields`` are further ones of its status."""
    announced = {
        "node": f"{STAND_IN}@{queue}",
        "state": state,
        "role": "finetune" if queue.endswith("finetune") else "forecast",
        "queue": queue,
        "device": "cpu" if queue.startswith("cpu") else "cuda:0",
    }
    return WORKER_STATUS.validate_python(announced | fields)


@dataclass
class _Job:
    """A job that was accepted."""

    task: str
    payload: dict[str, Any]
    queue: str
    stored: Stored


class _Jobs:
    """All jobs of a fake, and who wants to hear of them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.by_id: dict[str, _Job] = {}
        self.listeners: list[Callable[[str], object]] = []

    def store(self, job_id: str, stored: Stored) -> None:
        """The first outcome stands."""
        with self.changed:
            job = self.by_id[job_id]
            if job.stored.has_ended:
                return
            job.stored = stored
            self.changed.notify_all()
        for told in list(self.listeners):
            told(job_id)


class _FakeOutcome:
    """What a handle asks for its job."""

    def __init__(self, jobs: _Jobs, job_id: str) -> None:
        self._jobs = jobs
        self._id = job_id

    def read(self) -> Stored:
        job = self._jobs.by_id.get(self._id)
        return NOTHING if job is None else job.stored

    def wait(self, timeout_s: float) -> Stored | None:
        with self._jobs.changed:
            self._jobs.changed.wait_for(lambda: self.read().has_ended, timeout_s)
            stored = self.read()
        return stored if stored.has_ended else None

    def explain_absence(self) -> JobError | None:
        if self._id in self._jobs.by_id:
            return None
        return JobError(ErrorCode.LOST, "nothing is known of this job any more; submit it anew")

    def cancel(self) -> None:
        if self._id in self._jobs.by_id:
            self._jobs.store(self._id, Stored(states.FAILURE, NOT_BEGUN))

    def forget(self) -> bool:
        if self.read().status != states.SUCCESS:
            return False
        self._jobs.by_id[self._id].stored = Stored(states.FAILURE, FORGOTTEN)
        return True


class _FakeEndings:
    """Where the loop of ``forecast_many`` hears of its jobs."""

    def __init__(self, jobs: _Jobs) -> None:
        self._jobs = jobs
        self._told: set[str] = set()
        self._ids: set[str] = set()
        jobs.listeners.append(self._hear)

    def _hear(self, job_id: str) -> None:
        with self._jobs.changed:
            if job_id in self._ids:
                self._told.add(job_id)
                self._jobs.changed.notify_all()

    def add(self, job_id: str) -> None:
        self._ids.add(job_id)

    def remove(self, job_id: str) -> None:
        self._ids.discard(job_id)

    def wait(self, timeout_s: float) -> set[str]:
        with self._jobs.changed:
            self._jobs.changed.wait_for(lambda: self._told, timeout_s)
            told, self._told = self._told, set()
        return told

    def close(self) -> None:
        self._jobs.listeners.remove(self._hear)


class FakeForecastClient(BaseClient):
    """A ForecastClient whose jobs are held in memory.

    Args:
        settings: limits, as the real one has them; the defaults where left out.
        hold: jobs wait until ``finish``, ``fail`` or ``tell`` is called for them, as behind a busy worker.

    Attributes:
        live_workers: what ``workers`` gives; set it to have a GPU worker, or none. At first one on the CPU.
    """

    def __init__(self, *, settings: ClientSettings | None = None, hold: bool = False) -> None:
        super().__init__(settings or ClientSettings.model_construct())
        self.hold = hold
        self.live_workers: list[AnyWorkerStatus] = [fake_worker(CPU_QUEUE), fake_worker(CPU_FINETUNE_QUEUE)]
        self._jobs = _Jobs()
        self._refusals: deque[JobError] = deque()
        self._num_finetuned: dict[str, int] = {}

    @property
    def jobs(self) -> Mapping[str, dict[str, Any]]:
        """What was accepted, by id in the order of submission: each as a worker would be sent it."""
        with self._jobs.changed:
            return {job_id: job.payload for job_id, job in self._jobs.by_id.items()}

    def refuse_next(self, error: JobError, *, times: int = 1) -> None:
        """The next submissions that are in order end in this error, and are not accepted."""
        self._refusals.extend([error] * times)

    def tell(self, job_id: str, bars_done: int, bars_total: int) -> None:
        """A forecast that is held is under way so far."""
        self._jobs.store(job_id, Stored(PROGRESS_STATE, {"bars_done": bars_done, "bars_total": bars_total}))

    def finish(self, job_id: str, result: ForecastResult | FinetuneResult | None = None) -> None:
        """A job that is held ends in this result, or in the made-up one."""
        job = self._jobs.by_id[job_id]
        try:
            outcome = self._made_up(job_id, job) if result is None else result
        except JobError as error:
            self.fail(job_id, error)
        else:
            self._jobs.store(job_id, Stored(states.SUCCESS, outcome.model_dump(mode="json")))

    def fail(self, job_id: str, error: JobError) -> None:
        """A job that is held ends in this error."""
        self._jobs.store(job_id, Stored(states.FAILURE, error))

    def lose(self) -> None:
        """Nothing is known of any job any more, as where Redis was emptied."""
        with self._jobs.changed:
            self._jobs.by_id.clear()
            self._jobs.changed.notify_all()

    def close(self) -> None:
        """Nothing: what was accepted stays to be looked at."""

    def workers(self) -> list[AnyWorkerStatus]:
        return list(self.live_workers)

    def _known_workers(self) -> list[AnyWorkerStatus]:
        return self.workers()

    def _enqueue(
        self, task: str, payload: dict[str, Any], job_id: str, queue: str, priority: Priority, shown: str
    ) -> None:
        if self._refusals:
            raise self._refusals.popleft()
        with self._jobs.changed:
            known = self._jobs.by_id.get(job_id)
            if known is None:
                self._check_room(queue)
                self._jobs.by_id[job_id] = _Job(task, payload | {"submitted_at": time.time()}, queue, NOTHING)
            elif fingerprint(known.payload) != fingerprint(payload):
                raise JobError(
                    ErrorCode.ID_CONFLICT,
                    f"the id {job_id!r} was used for a job with other content; choose a new one",
                )
        if not self.hold:
            self.finish(job_id)

    def _check_room(self, queue: str) -> None:
        limit = self._settings.max_queue_jobs
        waiting = [job for job in self._jobs.by_id.values() if job.queue == queue]
        length = sum(job.stored.status == states.PENDING for job in waiting)
        if length >= limit:
            details = {"queue": queue, "length": length, "limit": limit, "retry_after_s": RETRY_AFTER_S}
            message = f"{length} jobs wait in queue {queue}, its limit is {limit}; submit it again later"
            raise JobError(ErrorCode.QUEUE_FULL, message, None, details)

    def _made_up(self, job_id: str, job: _Job) -> ForecastResult | FinetuneResult:
        limits = self._settings.limits(max_pred_len=MAX_CONTEXT)
        if job.task == FORECAST_TASK:
            return stand_in_forecast(parse_job(job.payload, limits), job_id, limits, queue=job.queue)
        finetuning = parse_finetune_job(job.payload, limits)
        version = self._num_finetuned.get(finetuning.name, 0) + 1
        self._num_finetuned[finetuning.name] = version
        return stand_in_finetuning(finetuning, version, queue=job.queue)

    def _outcome(self, job_id: str) -> Outcome:
        return _FakeOutcome(self._jobs, job_id)

    def _endings(self) -> Endings:
        return _FakeEndings(self._jobs)


class _FakeAsyncEndings:
    """Where handles of asyncio's are woken, from whichever thread a job ends on."""

    def __init__(self, jobs: _Jobs) -> None:
        self._jobs = jobs

    @asynccontextmanager
    async def of(self, job_id: str) -> AsyncIterator[asyncio.Event]:
        told, loop = asyncio.Event(), asyncio.get_running_loop()

        def hear(changed_id: str) -> None:
            if changed_id == job_id:
                loop.call_soon_threadsafe(told.set)

        self._jobs.listeners.append(hear)
        try:
            yield told
        finally:
            self._jobs.listeners.remove(hear)

    async def may_have_ended(self, job_id: str) -> bool:
        return True

    async def close(self) -> None:
        pass


class FakeAsyncForecastClient(AsyncForecastClient):
    """An AsyncForecastClient over ``fake``, which a test looks at and steers."""

    def __init__(self, fake: FakeForecastClient | None = None) -> None:
        self.fake = fake or FakeForecastClient()
        self._client: BaseClient = self.fake
        self._endings: AsyncEndings = _FakeAsyncEndings(self.fake._jobs)
