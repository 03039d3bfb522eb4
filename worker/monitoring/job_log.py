"""Logs one line for each job that ends here: id, outcome, timings, device. No torch."""

import logging
from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel

from kronos_client.contract.errors import JobError
from worker.monitoring.tracing import trace_id_of

log = logging.getLogger(__name__)

COPIED: Final = ("device", "device_warning", "engine", "queue", "worker", "timings_ms", "name", "version")
"""Fields of a result that are short and useful in a search. The last two are a trained model's."""


def log_job(task: str, job_id: str, outcome: object, node: str, device: str) -> None:
    """Log a job that ended with this result, a model or as JSON, or error."""
    how = "failed" if isinstance(outcome, JobError) else "done"
    fields: dict[str, object] = {"job_id": job_id, "task": task, "outcome": how}
    fields |= {"worker": node, "device": device}
    if (trace_id := trace_id_of(job_id)) is not None:
        fields["trace_id"] = trace_id
    if isinstance(outcome, BaseModel):
        outcome = outcome.model_dump(mode="json", include={*COPIED, "model"})
    if isinstance(outcome, Mapping):
        fields |= {name: outcome[name] for name in COPIED if outcome.get(name) is not None}
        model = outcome.get("model")
        if isinstance(model, Mapping):
            fields["model"] = model.get("id")
    elif isinstance(outcome, JobError):
        fields |= {"code": str(outcome.code), "field": outcome.field, "error": outcome.message}
    log.info("job %s: %s", job_id, fields.get("code") or fields["outcome"], extra=fields)
