"""Jobs of equal content have one id (``KRONOS_SHARE_EQUAL_JOBS``), so that they are computed once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kronos_client.contract.names import SHARED_PREFIX
from kronos_client.core.kinds import FORECAST
from kronos_client.redis.message import fingerprint
from kronos_client.redis.queues import is_gpu_queue
from kronos_model.checkpoints.names import bundled_names

if TYPE_CHECKING:
    from kronos_client.contract.model_info import EngineKind, ModelInfo
    from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus
    from kronos_client.core.job import Job


def shared(job: Job, scope: str, workers: Sequence[AnyWorkerStatus]) -> Job:
    """The job under the id that equal ones of this scope have; itself if it is not known to equal any.

    Equal are forecasts of the same content, with all seeds given, by the same revision of a model, which
    all ready ``workers`` must announce as their own, and by one engine, which all those of the pool that
    takes the job must announce.
    """
    if job.kind.name != FORECAST.name:
        return job
    content = json.loads(job.content)
    ready = _forecasting(workers)
    model, engines = announced_model(content.get("model"), workers), _engines(job, ready)
    seed, *own_seeds = [part.get("seed") for part in (content.get("sampling", {}), *content["series"])]
    if model is None or len(engines) != 1 or (seed is None and None in own_seeds):
        return job
    parts = {"content": job.content, "model": model.model_dump(), "scope": scope, "engine": engines[0]}
    return job._replace(id=SHARED_PREFIX + fingerprint(parts)[:40])


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


def _engines(job: Job, ready: Sequence[ForecastWorkerStatus]) -> list[EngineKind | None]:
    """The engines of the pool that takes the job. Workers of 0.1.0 announce none."""
    on_gpu = job.device != "cpu" and any(is_gpu_queue(worker.queue) for worker in ready)
    pool = [worker for worker in ready if is_gpu_queue(worker.queue) == on_gpu]
    return list({worker.models[0].engine if worker.models else None for worker in pool})


def _forecasting(workers: Iterable[AnyWorkerStatus]) -> list[ForecastWorkerStatus]:
    return [worker for worker in workers if worker.role == "forecast" and worker.is_ready and worker.model]
