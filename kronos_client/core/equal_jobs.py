"""Equal jobs under one id, so that they are computed once while the result is kept."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kronos_client.contract.job_ids import SHARED_PREFIX
from kronos_client.contract.model_info import ModelInfo
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus
from kronos_client.core.job import Job
from kronos_client.core.kinds import FORECAST
from kronos_client.redis.job_store import fingerprint

BUNDLED = "kronos-tiny"
"""A model whose files do not change, although it has no revision."""


def shared(job: Job, scope: str, workers: Iterable[AnyWorkerStatus]) -> Job:
    """The job under the id that equal ones of this scope have; itself if it is not known to equal any.

    Equal are forecasts of the same content, with all seeds given, by the same revision of a model: of the
    ready ``workers``, those that have it must announce the same one.
    """
    if job.kind is not FORECAST:
        return job
    content = json.loads(job.content)
    model = _announced(content.get("model"), workers)
    if model is None or not _has_seeds(content):
        return job
    parts = {"content": job.content, "model": model.model_dump(), "scope": scope}
    return replace(job, id=SHARED_PREFIX + fingerprint(parts)[:40])


def _has_seeds(content: dict[str, Any]) -> bool:
    drawn = [content.get("sampling", {}), *content["series"]]
    seeds = [one.get("seed") for one in drawn]
    return seeds[0] is not None or None not in seeds[1:]


def _announced(name: str | None, workers: Iterable[AnyWorkerStatus]) -> ModelInfo | None:
    """The model that ready workers have under this name, or as their own; None if they differ."""
    own = {
        worker.model
        for worker in workers
        if isinstance(worker, ForecastWorkerStatus) and worker.is_ready and worker.model is not None
    }
    found = {model for model in own if name in (None, model.id)}
    if len(found) != 1:
        return None
    (model,) = found
    return model if model.revision is not None or model.id == BUNDLED else None
