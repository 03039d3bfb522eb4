"""A worker's Celery node name where none is given: what it does, on which device, and with which model."""

import re
from typing import Final

from worker.settings import WorkerSettings

DEFAULT_MODEL: Final = "kronos-small"
MAX_MODEL_CHARS: Final = 40


def node_name(settings: WorkerSettings, device: str, host: str, pid: int) -> str:
    """As ``forecast-cuda0-kronos-small-4711@host``, or ``finetune-cpu-4711@host``.

    Of the model it has the last part of its hub id, folder or name. The process's number makes it unique on
    its host.

    Args:
        device: resolved, as ``cpu`` or ``cuda:0``.
    """
    parts = [settings.role, device.replace(":", "")]
    if settings.role == "forecast":
        parts.append(_short(settings.model) if settings.model else DEFAULT_MODEL)
    return f"{'-'.join(parts)}-{pid}@{host}"


def _short(model: str) -> str:
    """What may stand in names of queues and in URLs."""
    last = re.split(r"[/\\]", model.rstrip("/\\"))[-1].lower()
    return re.sub(r"[^a-z0-9._]+", "-", last).strip("-.")[:MAX_MODEL_CHARS] or "model"
