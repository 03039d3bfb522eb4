"""Names that apps and workers share: tasks, queues, priorities, keys in Redis."""

from typing import Final, Literal

SCHEMA_VERSION: Final = 1
"""The newest version of the job's layout that this code reads, and the one that it writes."""

FORECAST_TASK: Final = "kronos.forecast"
FINETUNE_TASK: Final = "kronos.finetune"
STATUS_TASK: Final = "kronos.status"

LOAD_MODEL_COMMAND: Final = "kronos_load_model"
"""A command of Celery's remote control, with ``model`` and ``ask``, an id under which it may be repeated."""

PROGRESS_STATE: Final = "PROGRESS"
"""A job's state while it is computed; its meta holds ``bars_done`` and ``bars_total``."""

CPU_QUEUE: Final = "cpu"
GPU_QUEUE: Final = "gpu"
CPU_FINETUNE_QUEUE: Final = f"{CPU_QUEUE}.finetune"
GPU_FINETUNE_QUEUE: Final = f"{GPU_QUEUE}.finetune"

Role = Literal["forecast", "finetune"]
"""What a worker does."""

Priority = Literal["high", "normal", "low"]
ContextPolicy = Literal["exact", "rolling"]
CELERY_PRIORITIES: Final[dict[Priority, int]] = {"high": 0, "normal": 3, "low": 6}
"""Celery over Redis serves 0 first."""

KEY_PREFIX: Final = "kronos:"

DEAD_KEY: Final = f"{KEY_PREFIX}dead"
"""A list of messages that nobody can read or answer, the newest first: JSON objects."""

MAX_ID_CHARS: Final = 200

MODEL_NAME: Final = r"[a-z0-9][a-z0-9._-]{0,63}"
"""Of a registered model, as a regular expression."""


def worker_key(node: str) -> str:
    """Where a worker announces its status; ``node`` is its Celery node name."""
    return f"{KEY_PREFIX}worker:{node}"


def job_key(job_id: str) -> str:
    """Where a job's record is kept."""
    return f"{KEY_PREFIX}job:{job_id}"


def cancel_key(job_id: str) -> str:
    """Where the wish to cancel a job is kept, and the channel on which it is told."""
    return f"{KEY_PREFIX}cancel:{job_id}"
