"""ForecastClient: enqueue forecasts from any app, without torch.

client = ForecastClient("redis://127.0.0.1:6379/0")
result = client.forecast(df, pred_len=96, sample_count=20)
result.series[0].frame()
"""

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from celery import states
from celery.exceptions import TimeoutError as CeleryTimeout
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from worker.celery_config import make_app
from worker.connection import connect
from worker.contract.errors import ErrorCode, JobError
from worker.contract.jobs import ForecastJob, parse_job, prepare
from worker.contract.names import CELERY_PRIORITIES, FORECAST_TASK, PROGRESS_STATE, SCHEMA_VERSION, Priority
from worker.contract.results import ForecastResult
from worker.jobs import JobRecords
from worker.routing import Status, choose_queue, live_workers
from worker.series import CandleSource, series_payload
from worker.settings import Settings, get_settings

WORKERS_KNOWN_FOR_S: Final = 1.0
NO_PRED_LEN_LIMIT: Final = 2**31


@dataclass(frozen=True)
class JobState:
    """Where a job is: PENDING (queued, or unknown), STARTED, PROGRESS, SUCCESS or FAILURE."""

    name: str
    bars_done: int | None = None
    bars_total: int | None = None


class ForecastHandle:
    """An enqueued job."""

    def __init__(self, job_id: str, queue: str, result: "AsyncResult[Any]", records: JobRecords) -> None:
        self.id = job_id
        self.queue = queue
        self._result = result
        self._records = records

    def __repr__(self) -> str:
        return f"ForecastHandle(id={self.id!r}, queue={self.queue!r})"

    def state(self) -> JobState:
        """Where the job is now."""
        with _reachable(self.id):
            meta = self._result.backend.get_task_meta(self.id)
        info = meta.get("result") if meta["status"] == PROGRESS_STATE else None
        if isinstance(info, dict):
            return JobState(meta["status"], info.get("bars_done"), info.get("bars_total"))
        return JobState(meta["status"])

    def wait(self, timeout_s: float | None = None) -> ForecastResult:
        """The result, once it is there.

        Raises JobError: the job's own; TIMEOUT where it is not done in time (it goes on; wait again);
        RESULT_EXPIRED or LOST where there is nothing to wait for.
        """
        try:
            with _reachable(self.id):
                self._check_that_it_will_come()
                payload = self._result.get(timeout=timeout_s)
        except CeleryTimeout:
            raise JobError(
                ErrorCode.TIMEOUT, f"no result within {timeout_s} s; the job goes on, wait again or cancel it"
            ) from None
        except JobError as error:
            raise error from None
        return ForecastResult.model_validate(payload)

    def cancel(self) -> None:
        """Ask for the job to end as CANCELLED; a job that is done already stays as it is."""
        if self.state().name not in states.READY_STATES:
            with _reachable(self.id):
                self._records.request_cancel(self.id)

    def _check_that_it_will_come(self) -> None:
        if self._result.backend.get_task_meta(self.id)["status"] == states.PENDING:
            absence = self._records.explain_absence(self.id)
            if absence is not None:
                raise absence


class ForecastClient:
    """Enqueues forecast jobs and waits for their results. May be shared between threads.

    Args:
        url: the workers' Redis; ``KRONOS_REDIS_URL`` where left out.
        settings: limits and lifetimes, as the workers have them; from the environment where left out.
    """

    def __init__(self, url: str | None = None, *, settings: Settings | None = None) -> None:
        settings = settings or get_settings()
        if url is not None:
            settings = settings.with_redis_url(url)
        self._settings = settings
        self._app = make_app(settings)
        self._redis = connect(settings.redis_url.get_secret_value())
        self._records = JobRecords(self._redis, settings.result_ttl_s)
        self._workers: list[Status] = []
        self._workers_read_at = float("-inf")

    def __enter__(self) -> "ForecastClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the connections; handles that are left cannot be waited for any more."""
        backend: Any = self._app.backend
        consumer = backend.result_consumer
        consumer.stop()
        # Else a handle that is collected later unsubscribes, and reconnects for it, up to 20 s long.
        consumer.subscribed_to.clear()
        self._app.close()
        self._redis.close()

    def workers(self) -> list[Status]:
        """The status of every live worker, as announced."""
        with _reachable():
            return live_workers(self._redis)

    def forecast(
        self,
        candles: CandleSource | Sequence[CandleSource],
        *,
        timeout_s: float | None = None,
        **options: Any,
    ) -> ForecastResult:
        """``submit`` and ``wait`` in one; a job that is not done in time is cancelled."""
        handle = self.submit(candles, **options)
        try:
            return handle.wait(timeout_s)
        except JobError as error:
            if error.code == ErrorCode.TIMEOUT:
                handle.cancel()
            raise

    def submit(
        self,
        candles: CandleSource | Sequence[CandleSource],
        *,
        pred_len: int | None = None,
        series_ids: Sequence[str] | None = None,
        timestamps: Iterable[Any] | None = None,
        future_timestamps: Iterable[Any] | None = None,
        timezone: str | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 0.9,
        sample_count: int = 1,
        seed: int | None = None,
        quantiles: Sequence[float] = (0.1, 0.5, 0.9),
        paths: bool = False,
        repair: bool = True,
        model: str | None = None,
        device: str = "auto",
        allow_fallback: bool = True,
        deadline_s: float | None = None,
        priority: Priority = "normal",
        job_id: str | None = None,
    ) -> ForecastHandle:
        """Enqueue one job.

        Args:
            candles: a DataFrame or a mapping of columns, or a list of them for several series.
            pred_len: bars to forecast; may be left out where ``future_timestamps`` says it.
            series_ids: names of the series; "0", "1", … where left out.
            timestamps, future_timestamps: of the only series, or a list of lists for several. Future ones
                that are left out are inferred from the lookback's spacing.
            timezone: IANA zone that inferred timestamps follow.
            temperature, top_k, top_p, sample_count, seed: sampling; without a seed it follows from the id.
            quantiles, paths, repair: what comes back.
            device, allow_fallback: which pool, and whether the CPU will do where it has no GPU worker.
            job_id: the id to use; the same id with the same content is safe to submit again.

        Raises:
            JobError: what the worker would answer, as far as it can be known here; NO_GPU_WORKER;
                ID_CONFLICT where the id was used for other content; BROKER_UNREACHABLE where nothing was
                enqueued; ENQUEUE_UNCERTAIN where that is not known.
        """
        job_id = str(uuid.uuid4()) if job_id is None else str(job_id)
        payload: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "series": _series(candles, series_ids, timestamps, future_timestamps, timezone),
            "sampling": _plain(
                temperature=temperature, top_k=top_k, top_p=top_p, sample_count=sample_count, seed=seed
            ),
            "output": {
                "quantiles": [float(level) for level in quantiles],
                "paths": paths,
                "repair": repair,
            },
            "device": device,
            "allow_fallback": allow_fallback,
            "priority": priority,
        }
        optional = _plain(pred_len=pred_len, model=model, deadline_s=deadline_s)
        payload |= {name: value for name, value in optional.items() if value is not None}
        job = self._check(payload, job_id)
        with _reachable():
            queue = choose_queue(device, allow_fallback, self._known_workers())
            self._records.claim(job_id, payload)
            payload["submitted_at"] = self._records.now()
        return self._enqueue(job, payload, job_id, queue)

    def _check(self, payload: dict[str, Any], job_id: str) -> ForecastJob:
        """What the worker would refuse is refused here, before it is sent."""
        limits = self._settings.limits(max_pred_len=NO_PRED_LEN_LIMIT)  # the worker knows its model's
        job = parse_job(payload, limits)
        size = len(json.dumps(payload, separators=(",", ":")))
        if size > limits.max_message_bytes:
            raise JobError(
                ErrorCode.LIMIT_EXCEEDED,
                f"the job takes {size} bytes, the limit is {limits.max_message_bytes}; send fewer series",
                "series",
                {"limit": limits.max_message_bytes, "actual": size},
            )
        prepare(job, job_id, limits)
        return job

    def _enqueue(self, job: ForecastJob, payload: dict[str, Any], job_id: str, queue: str) -> ForecastHandle:
        try:
            result = self._app.send_task(
                FORECAST_TASK,
                kwargs={"job": payload},
                task_id=job_id,
                queue=queue,
                priority=CELERY_PRIORITIES[job.priority],
                # By default Celery repeats the arguments, candles and all, in headers and events.
                argsrepr="()",
                kwargsrepr=_short(job),
                retry=False,
            )
        except (OperationalError, RedisError) as error:
            raise JobError(
                ErrorCode.ENQUEUE_UNCERTAIN,
                f"whether the job was enqueued is not known ({type(error).__name__}); submit it again with "
                "the same job_id",
                None,
                {"job_id": job_id},
            ) from error
        return ForecastHandle(job_id, queue, result, self._records)

    def _known_workers(self) -> list[Status]:
        """The live workers, read at most once a second."""
        now = time.monotonic()
        if now - self._workers_read_at > WORKERS_KNOWN_FOR_S:
            self._workers = live_workers(self._redis)
            self._workers_read_at = now
        return self._workers


# Celery's result consumer raises a bare RuntimeError once it has given up reconnecting.
NOT_REACHED: Final = (RedisError, OperationalError, RuntimeError)


class _reachable:
    """Turns a Redis that does not answer into a coded error."""

    def __init__(self, job_id: str | None = None) -> None:
        self._job_id = job_id

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, NOT_REACHED):
            details = {} if self._job_id is None else {"job_id": self._job_id}
            raise JobError(
                ErrorCode.BROKER_UNREACHABLE,
                f"Redis does not answer ({type(error).__name__}); is it running, and is the URL right?",
                None,
                details,
            ) from error


def _series(
    candles: CandleSource | Sequence[CandleSource],
    series_ids: Sequence[str] | None,
    timestamps: Any,
    future_timestamps: Any,
    timezone: str | None,
) -> list[dict[str, Any]]:
    """The job's series; what is given for each of several sources comes as a list as long as theirs."""
    several = isinstance(candles, list | tuple)
    sources = list(candles) if several else [candles]

    def one_each(values: Any, field: str) -> list[Any]:
        if values is None or not several:
            return [values] * len(sources)
        if len(values) != len(sources):
            raise JobError(
                ErrorCode.LENGTH_MISMATCH,
                f"{field} has {len(values)} entries for {len(sources)} series; give one for each",
                field,
            )
        return list(values)

    ids = [str(index) for index in range(len(sources))] if series_ids is None else list(series_ids)
    if len(ids) != len(sources):
        raise JobError(
            ErrorCode.LENGTH_MISMATCH, f"{len(ids)} series_ids for {len(sources)} series", "series_ids"
        )
    past, future = one_each(timestamps, "timestamps"), one_each(future_timestamps, "future_timestamps")
    payloads = []
    for index, source in enumerate(sources):
        try:
            payloads.append(
                series_payload(
                    source,
                    ids[index],
                    timestamps=past[index],
                    future_timestamps=future[index],
                    timezone=timezone,
                )
            )
        except JobError as error:
            field = f"series.{index}" + ("" if error.field is None else f".{error.field}")
            raise JobError(error.code, error.message, field, error.details) from None
    return payloads


def _plain(**values: Any) -> dict[str, Any]:
    """NumPy's scalars as Python's, which JSON takes."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}


def _short(job: ForecastJob) -> str:
    """What events and Flower show in place of the arguments."""
    names = ", ".join(series.id for series in job.series[:3]) + (", …" if len(job.series) > 3 else "")
    return f"{{'series': '{names}', 'samples': {job.sampling.sample_count}}}"
