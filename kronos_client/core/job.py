"""Job: a checked job, ready to be sent; equal ones may have one id, so that they are computed once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.jobs import check_series
from kronos_client.contract.names import SHARED_PREFIX, Priority, checked_job_id
from kronos_client.core.forecast_request import forecast_payload
from kronos_client.core.kinds import BACKTEST, FINETUNE, FORECAST, JobKind
from kronos_client.core.options import (
    BacktestJobOptions,
    DataSource,
    FinetuneOptions,
    ForecastOptions,
    SendingOptions,
)
from kronos_client.redis.message import canonical_json, fingerprint, kwargsrepr
from kronos_client.redis.queues import is_gpu_queue
from kronos_client.settings import ClientSettings
from kronos_model.checkpoints.names import bundled_names

if TYPE_CHECKING:
    from kronos_client.contract.model_info import EngineKind, ModelInfo
    from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus
    from kronos_client.core.long_request import ConfigSource


class Job(NamedTuple):
    """A job that may be sent any number of times under one id.

    Attributes:
        content: The job as canonical JSON, without its submission time.
        kwargsrepr: The arguments that Flower shows.
        calibrated_model: The model whose calibration it needs; None is the workers' own. False if it needs
            none.
    """

    id: str
    kind: JobKind[Any, Any]
    content: str
    device: str
    allow_fallback: bool
    priority: Priority
    kwargsrepr: str
    calibrated_model: str | Literal[False] | None = False

    def shared(self, scope: str, workers: Sequence[AnyWorkerStatus]) -> Job:
        """The job under the id that equal ones of this scope have; itself if it is not known to equal any.

        Equal are forecasts of the same content, with all seeds given, by the same revision of a model, which
        all ready ``workers`` must announce as their own, and by one engine, which all those of the pool that
        takes the job must announce.
        """
        if self.kind is not FORECAST:
            return self
        content = json.loads(self.content)
        ready = _forecasting(workers)
        model, engines = announced_model(content.get("model"), workers), self._engines(ready)
        seed, *own_seeds = [part.get("seed") for part in (content.get("sampling", {}), *content["series"])]
        if model is None or len(engines) != 1 or (seed is None and None in own_seeds):
            return self
        parts = {"content": self.content, "model": model.model_dump(), "scope": scope, "engine": engines[0]}
        return self._replace(id=SHARED_PREFIX + fingerprint(parts)[:40])

    def _engines(self, ready: Sequence[ForecastWorkerStatus]) -> list[EngineKind | None]:
        """The engines of the pool that takes the job. Workers of 0.1.0 announce none."""
        on_gpu = self.device != "cpu" and any(is_gpu_queue(worker.queue) for worker in ready)
        pool = [worker for worker in ready if is_gpu_queue(worker.queue) == on_gpu]
        return list({worker.models[0].engine if worker.models else None for worker in pool})


def _forecasting(workers: Iterable[AnyWorkerStatus]) -> list[ForecastWorkerStatus]:
    return [worker for worker in workers if worker.role == "forecast" and worker.is_ready and worker.model]


def announced_model(name: str | None, workers: Iterable[AnyWorkerStatus]) -> ModelInfo | None:
    """The model that a job means by this name; None if ready workers have different ones, or it may change.

    All of them must have it as their own. One that loads it on request may have another revision, and a
    registered name without its version means another one once that is promoted.
    """
    own = {
        (worker.models[0].id if worker.models else worker.model.id, worker.model)
        for worker in _forecasting(workers)
        if worker.model is not None
    }
    if len(own) != 1:
        return None
    ((known_as, model),) = own
    parts = ((model.id, model.revision), (model.tokenizer_id, model.tokenizer_revision))
    # A bundled model's files do not change, although it has no revision.
    is_fixed = all(revision is not None or part in bundled_names() for part, revision in parts)
    return model if is_fixed and name in (None, known_as) else None


def pop_sending(options: SendingOptions) -> tuple[str | None, float]:
    """Remove ``job_id`` and ``retry_for_s`` from an app's options, and return them."""
    return options.pop("job_id", None), options.pop("retry_for_s", 0.0)


def candles_job(candles: Any, options: ForecastOptions, job_id: str | None, settings: ClientSettings) -> Job:
    """Make and check a forecast of candles. Raises JobError."""
    return forecast_job(forecast_payload(candles, limits=settings.limits(), **options), job_id, settings)


def config_job(
    config: ConfigSource, name: str, options: FinetuneOptions, job_id: str | None, settings: ClientSettings
) -> Job:
    """Make and check a finetuning job. Raises JobError."""
    from kronos_client.core.long_request import finetune_payload

    return finetune_job(finetune_payload(config, name=name, **options), job_id, settings)


def data_job(
    data: DataSource, options: BacktestJobOptions, job_id: str | None, settings: ClientSettings
) -> Job:
    """Make and check a backtest of candles. Raises JobError."""
    from kronos_client.core.long_request import backtest_payload

    return backtest_job(backtest_payload(data, **options), job_id, settings)


def checked_job(
    kind: JobKind[Any, Any], payload: dict[str, Any], job_id: str | None, settings: ClientSettings
) -> Job:
    """Check a job in the contract's own form, as a worker will, but for its model's limit and its files.

    Raises:
        JobError: The error that the worker would return.
    """
    job_id, limits = checked_job_id(job_id), settings.limits()
    parsed, content = kind.parse(payload, limits), canonical_json(payload)
    actual, limit = len(content), limits.max_message_bytes
    if actual > limit:
        message = f"the job takes {actual} bytes, the limit is {limit}; {kind.if_too_large}"
        details = {"limit": limit, "actual": actual}
        raise JobError(ErrorCode.LIMIT_EXCEEDED, message, kind.candles_field, details)
    calibrated_model: str | Literal[False] | None = False
    if isinstance(parsed, ForecastJob):
        check_series(parsed, limits)
        calibrated_model = parsed.output.calibrated and parsed.model
    sent_to = parsed.device, parsed.allow_fallback, parsed.priority
    return Job(job_id, kind, content, *sent_to, kwargsrepr({"job": payload}), calibrated_model)


forecast_job: Final = partial(checked_job, FORECAST)
finetune_job: Final = partial(checked_job, FINETUNE)
backtest_job: Final = partial(checked_job, BACKTEST)
