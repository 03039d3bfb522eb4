"""Equal jobs under one id, so that they are computed once while the result is kept."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kronos_client.contract.model_info import ModelInfo
from kronos_client.contract.names import SHARED_PREFIX
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus
from kronos_client.core.job import Job
from kronos_client.core.kinds import FORECAST
from kronos_client.redis.job_store import fingerprint

BUNDLED = "kronos-tiny"
"""A model whose files do not change, although it has no revision."""


def shared(job: Job, scope: str, workers: Iterable[AnyWorkerStatus]) -> Job:
    """The job under the id that equal ones of this scope have; itself if it is not known to equal any.

    Equal are forecasts of the same content, with all seeds given, by the same revision of a model, which all
    ready ``workers`` must announce as their own.
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
    """The model that a job means by this name; None if ready workers have different ones, or it may change.

    All of them must have it as their own. One that loads it on request may have another revision, and a
    registered name without its version means another one once that is promoted.
    """
    own = {
        (worker.models[0].id if worker.models else worker.model.id, worker.model)
        for worker in workers
        if isinstance(worker, ForecastWorkerStatus) and worker.is_ready and worker.model is not None
    }
    if len(own) != 1:
        return None
    ((known_as, model),) = own
    parts = ((model.id, model.revision), (model.tokenizer_id, model.tokenizer_revision))
    is_fixed = all(revision is not None or part == BUNDLED for part, revision in parts)
    return model if is_fixed and name in (None, known_as) else None
