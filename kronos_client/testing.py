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
import math
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from kronos_client import __version__
from kronos_client.aio import AsyncForecastClient
from kronos_client.client import ForecastClient
from kronos_client.contract import states
from kronos_client.contract.backtest import BacktestJob, BacktestResult, BacktestTimings
from kronos_client.contract.errors import JobError
from kronos_client.contract.finetune import FinetunedModel, FinetuneJob, FinetuneResult, FinetuneTimings
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.jobs import Limits, PreparedSeries, parse_job, prepare
from kronos_client.contract.model_info import CalibrationInfo, ModelInfo, ResultModel
from kronos_client.contract.names import CPU_QUEUE, PROGRESS_STATE, Role, is_shared
from kronos_client.contract.results import (
    ForecastProgress,
    ForecastResult,
    SeriesForecast,
    Timings,
    sampling_warnings,
    series_result,
    with_manifests,
)
from kronos_client.contract.schemas import example
from kronos_client.contract.worker_status import WORKER_STATUS, AnyWorkerStatus, State
from kronos_client.core.core import Core
from kronos_client.core.dispatcher import Dispatcher
from kronos_client.core.forecast_request import with_defaults
from kronos_client.core.handle import LoopThread
from kronos_client.core.job import Job
from kronos_client.core.result_store import OnState
from kronos_client.core.stored import FORGOTTEN, LATE, LOST, NOT_BEGUN, NOTHING, Stored, lost
from kronos_client.feeds.job import FeedJob
from kronos_client.feeds.memory import MemoryFeedStore
from kronos_client.redis.admission import id_conflict, queue_full
from kronos_client.redis.queues import is_gpu_queue
from kronos_client.redis.routing import why_elsewhere
from kronos_client.settings import ClientSettings
from kronos_model.bars.columns import CLOSE, VOLUME
from kronos_model.forecast import Forecast

STAND_IN: str = "stand-in"
"""The model's id in results, so that nobody takes them for forecasts."""

MAX_CONTEXT = 512
"""Bars that the fake's model can see, as with most models."""

SPREAD = 0.01
"""The standard deviation of a bar's return."""


def _forecast(job: ForecastJob, job_id: str, limits: Limits, queue: str) -> ForecastResult:
    """A random walk from the last close; the same for the same job and seed."""
    device = "cuda:0" if is_gpu_queue(queue) else "cpu"
    device_warning = why_elsewhere(job.device, device, None, allow_fallback=job.allow_fallback)
    num_bars = job.num_bars_read(None, MAX_CONTEXT)
    series = [prepared.last(num_bars) for prepared in prepare(job, job_id, limits)]
    warnings = sampling_warnings(job)
    calibration = CalibrationInfo(  # nothing was corrected: the random walk is calibrated
        method=STAND_IN, lookback=num_bars, horizon=job.horizon, sample_count=job.sampling.sample_count,
        num_windows=1, weights={}, first="", last="", fitted_at="", age_days=0.0,
    )  # fmt: skip
    forecasts = (series_result(prepared, _walk(prepared, job), job.output) for prepared in series)
    model = ModelInfo(id=job.model or STAND_IN, revision=None, tokenizer_id=STAND_IN, tokenizer_revision=None)
    facts: Any = {"model": model, "engine": "torch", "device": device}
    return ForecastResult(
        series=with_manifests(forecasts, job, series, version=__version__, **facts),
        calibration=calibration if job.output.calibrated else None,
        device_warning=device_warning,
        **facts,
        queue=queue,
        worker=STAND_IN,
        timings_ms=Timings(queued=0.0, prefill=0.0, decode=0.0, total=0.0),
        warnings=tuple(warnings if device_warning is None else [device_warning, *warnings]),
    )


def _walk(series: PreparedSeries, job: ForecastJob) -> Forecast:
    rng = np.random.default_rng(series.seed)
    last = float(series.bars[-1, CLOSE])
    steps = SPREAD * rng.standard_normal((job.sampling.sample_count, job.horizon))
    close = last * np.exp(np.cumsum(steps, axis=1))  # (S, H)
    open_ = np.concatenate([np.full((len(close), 1), last), close[:, :-1]], axis=1)
    body = np.stack([open_, close])
    high, low = body.max(axis=0) * (1 + SPREAD), body.min(axis=0) * (1 - SPREAD)
    volume = np.full(close.shape, series.bars[:, VOLUME].mean(dtype=np.float64))
    bars = np.stack([open_, high, low, close, volume, volume * close], axis=-1)  # (S, H, 6), as COLUMNS
    return Forecast(bars.astype(np.float32), series.seed)


def fake_result(
    job: ForecastJob | FinetuneJob | BacktestJob,
    job_id: str,
    limits: Limits,
    queue: str,
    num_finetuned: Counter[str],
) -> ResultModel:
    """A result of the right form. ``num_finetuned`` counts the versions of each model's name.

    Raises:
        JobError: As a worker does, if the job's series cannot be used.
    """
    if isinstance(job, ForecastJob):
        return _forecast(job, job_id, limits, queue)
    common: dict[str, Any] = {"queue": queue, "worker": STAND_IN, "num_attempts": 1, "resumed": False}
    if isinstance(job, BacktestJob):  # the example's report, with its first model for each of the job's
        report = example("backtest-result")["report"]
        verdict = ["Nothing was forecast: this report is made up."]
        model = next(iter(report["models"].values())) | {"verdict": verdict}
        report |= {"models": dict.fromkeys((name or STAND_IN for name in job.models), model)}
        return BacktestResult(report=report, timings_ms=BacktestTimings(queued=0.0, total=0.0), **common)
    num_finetuned[job.name] += 1
    name, version = job.name, num_finetuned[job.name]
    return FinetuneResult(
        model=FinetunedModel(name=name, version=version, id=f"{name}@{version}"),
        parent={"model": STAND_IN, "revision": None, "tokenizer": STAND_IN, "tokenizer_revision": None},
        metrics={},
        verdict=("Nothing was trained: this result is made up.",),
        evaluation=None,
        data={},
        device="cuda:0" if is_gpu_queue(queue) else "cpu",
        timings_ms=FinetuneTimings(queued=0.0, training=0.0, total=0.0),
        **common,
    )


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

    def is_late(self) -> bool:
        ends_at = self.payload["submitted_at"] + (self.payload.get("deadline_s") or math.inf)
        return not self.stored.has_ended and self.stored.absence is None and time.time() > ends_at


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
        if accepted is None:
            return Stored(absence=LOST)
        if accepted.is_late():
            self.store(job_id, Stored(states.FAILURE, LATE))
        return Stored(queue=accepted.queue) if accepted.stored == NOTHING else accepted.stored

    def accepted(self, job_id: str) -> _Accepted:
        """Raises JobError LOST for an id that was not accepted."""
        if (accepted := self.by_id.get(job_id)) is None:
            raise JobError(*LOST.args)
        return accepted

    def store(self, job_id: str, stored: Stored) -> None:
        """Store and publish a state; the first outcome stands."""
        with self._lock:
            accepted = self.accepted(job_id)
            if accepted.stored.has_ended:
                return
            accepted.stored = stored
            for store in list(self.stores):  # others may be added or closed meanwhile
                store.publish(job_id, stored)

    def finish(self, job_id: str, result: ResultModel | None = None) -> None:
        """End a job with this result, or with a made-up one."""
        accepted, limits = self.accepted(job_id), self.settings.limits(max_pred_len=MAX_CONTEXT)
        try:
            if result is None:
                job = accepted.job.kind.parse(accepted.payload, limits)
                result = fake_result(job, job_id, limits, accepted.queue, self._num_finetuned)
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
        self._settings = settings
        self._sender = self._memory = memory = _Memory(settings, self)
        compute = partial(FakeForecastClient._on_append, weakref.proxy(self))
        self._feeds = MemoryFeedStore(compute, memory.refusals)
        self._thread = LoopThread(lambda: Core(settings, memory, _MemoryStore(memory)))

    def _feed_store(self) -> MemoryFeedStore:
        return self._feeds

    def finish_feeds(self) -> None:
        """Forecast what is due in all feeds, whose jobs are held, too."""
        for name, uid, _ in self._feeds.all():
            self._forecast_feed(name, uid)

    def _on_append(self, name: str, uid: str) -> None:
        if not self.hold:
            self._forecast_feed(name, uid)

    def _forecast_feed(self, name: str, uid: str) -> None:
        """Forecast what is due in a feed."""
        is_due = True
        while is_due:
            work = FeedJob(self._feeds, {"feed": {"name": name, "uid": uid}}, "feed", "")
            payload, limits = work.take(), self._settings.limits(max_pred_len=MAX_CONTEXT)
            try:
                job = None if payload is None else parse_job(payload, limits)
                work.end(None if job is None else _forecast(job, "feed", limits, CPU_QUEUE))
            except JobError as error:
                work.end(error)
            is_due = payload is not None

    @property
    def jobs(self) -> Mapping[str, dict[str, Any]]:
        """The accepted jobs by id, in the order of submission, each as a worker reads it."""
        return {
            job_id: with_defaults(accepted.payload)
            if accepted.job.kind.name == "forecast"
            else accepted.payload
            for job_id, accepted in list(self._memory.by_id.items())
        }

    def refuse_next(self, error: JobError, *, times: int = 1) -> None:
        """Refuse the next valid submissions, or appends to feeds, with this error."""
        self._memory.refusals.extend([error] * times)

    def set_progress(
        self, job_id: str, bars_done: int, bars_total: int, series: Sequence[SeriesForecast] = ()
    ) -> None:
        """Set the progress of a held forecast; ``series`` are the bars of one that streams."""
        progress = ForecastProgress(bars_done=bars_done, bars_total=bars_total, series=tuple(series))
        self._memory.store(job_id, Stored(PROGRESS_STATE, progress.as_json()))

    def finish(self, job_id: str, result: ResultModel | None = None) -> None:
        """End a held job with this result, or with a made-up one. An unknown id is JobError LOST."""
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

    def _feed_store(self) -> MemoryFeedStore:
        return self.fake._feed_store()

    def __init__(self, fake: FakeForecastClient | None = None) -> None:
        self.fake = fake or FakeForecastClient()
        memory = self.fake._memory
        self._serve(lambda: Core(memory.settings, memory, _MemoryStore(memory)))
