"""ForecastClient: enqueue forecasts and finetuning from any app, without torch.

Such as:

    with ForecastClient("redis://127.0.0.1:6379/0") as client:
        result = client.forecast(df, pred_len=96, sample_count=20)
    result.series[0].frame()
"""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from worker.celery_config import make_app
from worker.connection import connect
from worker.contract.errors import ErrorCode, JobError
from worker.contract.finetune import parse_finetune_job
from worker.contract.jobs import ForecastJob, Limits, parse_job, prepare
from worker.contract.names import (
    CELERY_PRIORITIES,
    FINETUNE_TASK,
    FORECAST_TASK,
    SCHEMA_VERSION,
    ContextPolicy,
    Priority,
)
from worker.contract.results import ForecastResult
from worker.finetune_request import ConfigSource, DataSource, finetune_payload
from worker.handle import FinetuneHandle, FinetuneState, ForecastHandle, JobState, reachable
from worker.jobs import JobRecords
from worker.routing import Status, choose_finetune_queue, choose_queue, live_workers
from worker.series import CandleSource, job_series
from worker.settings import Settings, get_settings

__all__ = ["FinetuneHandle", "FinetuneState", "ForecastClient", "ForecastHandle", "JobState"]

WORKERS_KNOWN_FOR_S: Final = 1.0
NO_PRED_LEN_LIMIT: Final = 2**31


class ForecastClient:
    """Enqueues forecast and finetuning jobs and waits for their results. May be shared between threads.

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
        with reachable():
            return live_workers(self._redis)

    def forecast(
        self,
        candles: CandleSource | Sequence[CandleSource],
        *,
        timeout_s: float | None = None,
        on_progress: Callable[[JobState], object] | None = None,
        **options: Any,
    ) -> ForecastResult:
        """``submit`` and ``wait`` in one; a job that is not done in time is cancelled."""
        handle = self.submit(candles, **options)
        try:
            return handle.wait(timeout_s, on_progress=on_progress)
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
        context_policy: ContextPolicy = "exact",
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
            context_policy: "exact", or "rolling" for an approximation that stays fast beyond the context.
            job_id: the id to use. The same content may be submitted again under it: a job has one outcome.

        Raises:
            JobError: what the worker would answer, as far as it can be known here; NO_GPU_WORKER;
                ID_CONFLICT where the id was used for other content; BROKER_UNREACHABLE where nothing was
                enqueued; ENQUEUE_UNCERTAIN where that is not known.
        """
        job_id = _job_id(job_id)
        payload: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "series": job_series(candles, series_ids, timestamps, future_timestamps, timezone),
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
            "context_policy": context_policy,
        }
        optional = _plain(pred_len=pred_len, model=model, deadline_s=deadline_s)
        payload |= {name: value for name, value in optional.items() if value is not None}
        # What the worker would refuse is refused here, before it is sent; its model's limit only it knows.
        limits = self._settings.limits(max_pred_len=NO_PRED_LEN_LIMIT)
        job = parse_job(payload, limits)
        _check_size(payload, limits, "series", "send fewer series")
        prepare(job, job_id, limits)
        with reachable():
            queue = choose_queue(device, allow_fallback, self._known_workers())
        result = self._enqueue(FORECAST_TASK, payload, job_id, queue, job.priority, _short(job))
        return ForecastHandle(job_id, queue, result, self._records)

    def finetune(
        self,
        config: ConfigSource,
        *,
        name: str,
        data: DataSource | None = None,
        device: str = "auto",
        allow_fallback: bool = True,
        deadline_s: float | None = None,
        priority: Priority = "normal",
        job_id: str | None = None,
    ) -> FinetuneHandle:
        """Enqueue one finetuning job.

        Args:
            config: a FinetuneConfig, a mapping like it, or the path of a YAML or JSON file.
            name: that the trained model is registered under, and forecasts name it by.
            data: paths of files or folders below the workers' data folder, one or a list; or the candles
                themselves, as ``submit`` takes them, or a mapping from instruments' names to them. Where left
                out, the config's ``data.path``, below the workers' data folder.
            device, allow_fallback: which pool, and whether the CPU will do where it has no GPU worker for
                finetuning. Where it is auto, the config's ``training_device`` is asked for.
            job_id: the id to use. The same content may be submitted again under it: a job has one outcome.

        Raises:
            JobError: as ``submit`` does; INVALID_CONFIG with the field, such as ``config.predictor.epochs``.
        """
        job_id = _job_id(job_id)
        payload: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "name": name,
            **finetune_payload(config, data, device),
            "allow_fallback": allow_fallback,
            "priority": priority,
        }
        if deadline_s is not None:
            payload |= _plain(deadline_s=deadline_s)
        limits = self._settings.limits(max_pred_len=NO_PRED_LEN_LIMIT)
        job = parse_finetune_job(payload, limits)
        _check_size(payload, limits, "data.instruments", "put the candles into the workers' data folder")
        with reachable():
            queue = choose_finetune_queue(job.device, allow_fallback, self._known_workers())
        shown = f"{{'name': '{job.name}'}}"
        result = self._enqueue(FINETUNE_TASK, payload, job_id, queue, job.priority, shown)
        return FinetuneHandle(job_id, queue, result, self._records)

    def finetune_handle(self, job_id: str) -> FinetuneHandle:
        """The handle of a finetuning job that was enqueued elsewhere; its ``queue`` is not known."""
        return FinetuneHandle(job_id, None, self._app.AsyncResult(job_id), self._records)

    def _enqueue(
        self, task: str, payload: dict[str, Any], job_id: str, queue: str, priority: Priority, shown: str
    ) -> "AsyncResult[Any]":
        """Send a job, unless it is known to have its outcome. ``shown`` stands for its arguments in Flower.

        Raises JobError: ID_CONFLICT, BROKER_UNREACHABLE, ENQUEUE_UNCERTAIN.
        """
        with reachable():
            submitted_at = self._records.claim(job_id, payload)
        if submitted_at is None:
            return self._app.AsyncResult(job_id)
        try:
            return self._app.send_task(
                task,
                kwargs={"job": payload | {"submitted_at": submitted_at}},
                task_id=job_id,
                queue=queue,
                priority=CELERY_PRIORITIES[priority],
                # By default Celery repeats the arguments, candles and all, in headers and events.
                argsrepr="()",
                kwargsrepr=shown,
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

    def _known_workers(self) -> list[Status]:
        """The live workers, read at most once a second."""
        now = time.monotonic()
        if now - self._workers_read_at > WORKERS_KNOWN_FOR_S:
            self._workers = live_workers(self._redis)
            self._workers_read_at = now
        return self._workers


def _job_id(job_id: str | None) -> str:
    """The one that was given, else a new one."""
    if job_id == "":
        raise JobError(ErrorCode.BAD_VALUE, "job_id is empty; leave it out to have one made", "job_id")
    return str(uuid.uuid4()) if job_id is None else str(job_id)


def _check_size(payload: Mapping[str, Any], limits: Limits, field: str, remedy: str) -> None:
    size = len(json.dumps(payload, separators=(",", ":")))
    if size > limits.max_message_bytes:
        raise JobError(
            ErrorCode.LIMIT_EXCEEDED,
            f"the job takes {size} bytes, the limit is {limits.max_message_bytes}; {remedy}",
            field,
            {"limit": limits.max_message_bytes, "actual": size},
        )


def _plain(**values: Any) -> dict[str, Any]:
    """NumPy's scalars as Python's, which JSON takes."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}


def _short(job: ForecastJob) -> str:
    """What events and Flower show in place of the arguments."""
    names = ", ".join(series.id for series in job.series[:3]) + (", …" if len(job.series) > 3 else "")
    return f"{{'series': '{names}', 'samples': {job.sampling.sample_count}}}"
