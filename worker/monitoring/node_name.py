"""A worker's default Celery node name: its role, device and model."""

import re
from typing import Final

from worker.settings import WorkerSettings

DEFAULT_MODEL: Final = "kronos-small"
MAX_MODEL_CHARS: Final = 40


def node_name(settings: WorkerSettings, device: str, host: str, pid: int) -> str:
    """A name such as ``forecast-cuda0-kronos-small-4711@host`` or ``finetune-cpu-4711@host``.

    The model's part is the last part of its hub id, folder or name. The process id makes the name unique on
    its host.
    """
    parts = [settings.role, device.replace(":", "")]
    if settings.role == "forecast":
        parts.append(_short(settings.model) if settings.model else DEFAULT_MODEL)
    return f"{'-'.join(parts)}-{pid}@{host}"


def _short(model: str) -> str:
    """The model's last part, safe in queue names and URLs."""
    last = re.split(r"[/\\]", model.rstrip("/\\"))[-1].lower()
    return re.sub(r"[^a-z0-9._]+", "-", last).strip("-.")[:MAX_MODEL_CHARS] or "model"
