"""Logs one line for each job that ends here: id, outcome, timings, device. No torch."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from celery import states

from kronos_client.contract.errors import JobError

log = logging.getLogger(__name__)

OUTCOMES: Final = {states.SUCCESS: "done", states.FAILURE: "failed"}
COPIED: Final = ("device", "device_warning", "queue", "worker", "timings_ms", "name", "version")
"""Fields of a result that are short and useful in a search. The last two are a trained model's."""


def log_job(task: str, job_id: str, state: str | None, outcome: Any, node: str, device: str) -> None:
    """Log a job that ended with a result as JSON or an error; one that goes back to the queue has not."""
    if state is None or state not in OUTCOMES:
        return
    fields: dict[str, Any] = {"job_id": job_id, "task": task, "outcome": OUTCOMES[state]}
    fields |= {"worker": node, "device": device}
    if isinstance(outcome, Mapping):
        fields |= {name: outcome[name] for name in COPIED if outcome.get(name) is not None}
        model = outcome.get("model")
        if isinstance(model, Mapping):
            fields["model"] = model.get("id")
    elif isinstance(outcome, JobError):
        fields |= {"code": str(outcome.code), "field": outcome.field, "error": outcome.message}
    log.info("job %s: %s", job_id, fields.get("code") or fields["outcome"], extra=fields)
