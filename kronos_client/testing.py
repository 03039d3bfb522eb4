"""FakeForecastClient, FakeAsyncForecastClient: the clients for an app's own tests, without Redis and workers.

They refuse the same jobs as the real ones, with the same errors. An accepted job ends at once with a made-up
result of the right form, the same for the same job and seed. For example:

    def test_my_app():
        client = FakeForecastClient()
        client.refuse_next(JobError("QUEUE_FULL", "full", None, {"retry_after_s": 1}))
        ...
        assert client.jobs["my-id"]["pred_len"] == 24
"""

import asyncio
import json
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kronos_client.aio import AsyncForecastClient
from kronos_client.client import ForecastClient
from kronos_client.contract import states
from kronos_client.contract.errors import JobError
from kronos_client.contract.model_info import ResultModel
from kronos_client.contract.names import CPU_QUEUE, PROGRESS_STATE, Role, is_shared
from kronos_client.contract.results import ForecastProgress, SeriesForecast
from kronos_client.contract.worker_status import WORKER_STATUS, AnyWorkerStatus, State
from kronos_client.core.core import Core
from kronos_client.core.dispatcher import Dispatcher
from kronos_client.core.fake_results import MAX_CONTEXT, STAND_IN, fake_result
from kronos_client.core.job import Job
from kronos_client.core.result_store import OnState
from kronos_client.core.stored import FORGOTTEN, LOST, NOT_BEGUN, NOTHING, Stored, lost
from kronos_client.redis.admission import id_conflict, queue_full
from kronos_client.redis.queues import is_gpu_queue
from kronos_client.settings import ClientSettings

__all__ = ["FakeAsyncForecastClient", "FakeForecastClient", "fake_worker"]

RETRY_AFTER_S: Final = 1
"""The ``retry_after_s`` of a full queue."""


def fake_worker(queue: str = CPU_QUEUE, state: State = "ready", **fields: Any) -> AnyWorkerStatus:
    """A worker's announcement; ``fields`` are further fields of its status."""
    announced = {
        "node": f"{STAND_IN}@{queue}",
        "state": state,
        "role": "finetune" if queue.endswith("finetune") else "forecast",
        "queue": queue,
        "device": "cuda:0" if is_gpu_queue(queue) else "cpu",
    }
    return WORKER_STATUS.validate_python(announced | fields)


@dataclass
class _Accepted:
    job: Job
    payload: dict[str, Any]
    queue: str
    stored: Stored = NOTHING


class _Memory(Dispatcher):
    """All jobs of a fake, in the order of their submission. May be used by several threads at once."""

    def __init__(self, settings: ClientSettings, fake: "FakeForecastClient") -> None:
        super().__init__(settings)
        self._fake = weakref.proxy(fake)
        self.refusals: deque[JobError] = deque()
        self.by_id: dict[str, _Accepted] = {}
        self.stores: set[_MemoryStore] = set()
        self._num_finetuned: Counter[str] = Counter()
        self._lock = threading.RLock()

    def workers(self) -> list[AnyWorkerStatus]:
        return list(self._fake.live_workers)

    def enqueue(self, jobs: Sequence[tuple[Job, str]]) -> list[JobError | None]:
        return [self._refusal_of(job, queue) for job, queue in jobs]

    def _refusal_of(self, job: Job, queue: str) -> JobError | None:
        """The error of a job that is not accepted."""
        with self._lock:
            if self.refusals:
                return self.refusals.popleft()
            stored = self.read(job.id)
            if stored.absence or (is_shared(job.id) and stored.status == states.FAILURE):
                if (error := self._queue_full(queue)) is not None:
                    return error
                payload = json.loads(job.content) | {"submitted_at": time.time()}
                self.by_id[job.id] = _Accepted(job, payload, queue)
            elif self.by_id[job.id].job.content != job.content:
                return id_conflict(job.id)
        if not self._fake.hold:
            self.finish(job.id)
        return None

    def _cancel(self, job_id: str) -> None:
        if job_id in self.by_id:
            self.store(job_id, Stored(states.FAILURE, NOT_BEGUN))

    def close(self) -> None:
        """Do nothing, so that tests can inspect accepted jobs later."""

    def forget(self, job_id: str) -> bool:
        """Delete a result; returns whether there was one."""
        with self._lock:
            if self.read(job_id).status != states.SUCCESS:
                return False
            self.by_id[job_id].stored = Stored(states.FAILURE, FORGOTTEN)
            return True

    def read(self, job_id: str) -> Stored:
        accepted = self.by_id.get(job_id)
        return Stored(absence=LOST) if accepted is None else accepted.stored

    def store(self, job_id: str, stored: Stored) -> None:
        """Store and publish a state; the first outcome stands."""
        with self._lock:
            accepted = self.by_id[job_id]
            if accepted.stored.has_ended:
                return
            accepted.stored = stored
            for store in list(self.stores):  # others may be added or closed meanwhile
                store.publish(job_id, stored)

    def finish(self, job_id: str, result: ResultModel | None = None) -> None:
        """End a job with this result, or with a made-up one."""
        one, limits = self.by_id[job_id], self.settings.limits(max_pred_len=MAX_CONTEXT)
        try:
            if result is None:
                job = one.job.kind.parse(one.payload, limits)
                result = fake_result(job, job_id, limits, one.queue, self._num_finetuned)
        except JobError as error:
            self.store(job_id, Stored(states.FAILURE, error))
        else:
            self.store(job_id, Stored(states.SUCCESS, result.model_dump(mode="json")))

    def _queue_full(self, queue: str) -> JobError | None:
        waiting = [job for job in self.by_id.values() if job.stored.status == states.PENDING]
        length = sum(job.queue == queue for job in waiting)
        limit = self.settings.max_queue_jobs
        return queue_full(queue, length, limit, RETRY_AFTER_S) if length >= limit else None


class _MemoryStore:
    """A ``ResultStore`` over a fake's jobs, for one event loop."""

    def __init__(self, memory: _Memory) -> None:
        self._memory = memory
        self._on_state: OnState | None = None
        self.awaited: set[str] = set()

    def start(self, on_state: OnState) -> None:
        if self._on_state is None:
            self._on_state, self._loop = on_state, asyncio.get_running_loop()
            self._memory.stores.add(self)

    def publish(self, job_id: str, stored: Stored) -> None:
        """Pass a state to the loop; called on the thread that stores it."""
        if self._on_state is not None:
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._on_state, job_id, stored)

    async def read(self, job_ids: Sequence[str]) -> list[Stored]:
        return [self._memory.read(job_id) for job_id in job_ids]

    async def forget(self, job_id: str, *, has_result: bool = False) -> bool:
        return self._memory.forget(job_id)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        self._memory.stores.discard(self)


class FakeForecastClient(ForecastClient):
    """A ForecastClient whose jobs are held in memory.

    Args:
        settings: The limits; by default the settings' defaults.
        hold: Whether jobs wait until ``finish`` or ``fail`` ends them.

    Attributes:
        live_workers: The workers that ``workers`` returns. Set it to have a GPU worker, or none. By
            default one for forecasts and one for finetuning, both on the CPU.
    """

    def __init__(self, *, settings: ClientSettings | None = None, hold: bool = False) -> None:
        settings = settings or ClientSettings.model_construct()
        self.hold = hold
        roles: tuple[Role, ...] = ("forecast", "finetune")
        self.live_workers = [fake_worker(settings.queue_names.on_device("cpu", role)) for role in roles]
        self._memory = memory = _Memory(settings, self)
        self._set_up(settings, memory, partial(_MemoryStore, memory))

    @property
    def jobs(self) -> Mapping[str, dict[str, Any]]:
        """The accepted jobs by id, in the order of submission, each as a worker would receive it."""
        return {job_id: one.payload for job_id, one in list(self._memory.by_id.items())}

    def refuse_next(self, error: JobError, *, times: int = 1) -> None:
        """Refuse the next valid submissions with this error."""
        self._memory.refusals.extend([error] * times)

    def set_progress(
        self, job_id: str, bars_done: int, bars_total: int, series: Sequence[SeriesForecast] = ()
    ) -> None:
        """Set the progress of a held forecast; ``series`` are the bars of one that streams."""
        progress = ForecastProgress(bars_done=bars_done, bars_total=bars_total, series=tuple(series))
        self._memory.store(job_id, Stored(PROGRESS_STATE, progress.as_json()))

    def finish(self, job_id: str, result: ResultModel | None = None) -> None:
        """End a held job with this result, or with a made-up one."""
        self._memory.finish(job_id, result)

    def fail(self, job_id: str, error: JobError) -> None:
        """End a held job with this error."""
        self._memory.store(job_id, Stored(states.FAILURE, error))

    def lose(self, job_id: str | None = None) -> None:
        """Lose a held job's message. Without an id forget all jobs, as if Redis was emptied."""
        if job_id is None:
            self._memory.by_id.clear()
        else:
            self._memory.store(job_id, Stored(absence=lost(job_id)))


class FakeAsyncForecastClient(AsyncForecastClient):
    """An AsyncForecastClient over ``fake``, through which a test reads and ends jobs."""

    def __init__(self, fake: FakeForecastClient | None = None) -> None:
        self.fake = fake or FakeForecastClient()
        memory = self.fake._memory
        self._core = Core(memory.settings, memory, _MemoryStore(memory))
