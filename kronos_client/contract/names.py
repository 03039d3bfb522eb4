"""Names that apps and workers share: tasks, queues, priorities, keys in Redis."""

from typing import Final, Literal

SCHEMA_VERSION: Final = 1
"""The newest version of the job's layout that this code reads, and the one that it writes."""

FORECAST_TASK: Final = "kronos.forecast"
FINETUNE_TASK: Final = "kronos.finetune"
BACKTEST_TASK: Final = "kronos.backtest"
STATUS_TASK: Final = "kronos.status"

LOAD_MODEL_COMMAND: Final = "kronos_load_model"
"""A command of Celery's remote control. It takes ``model``, and ``ask``, the id of a repeated request."""

CONTROL_EXCHANGE: Final = "kronos"
"""Celery's ``control_exchange`` of workers and Flower. ``KRONOS_QUEUE_PREFIX`` stands before it."""

EVENT_EXCHANGE: Final = "kronos.events"
"""Celery's ``event_exchange``, with the same prefix."""

PROGRESS_STATE: Final = "PROGRESS"
"""A job's state while it is computed; its meta holds ``bars_done`` and ``bars_total``."""

CPU_QUEUE: Final = "cpu"
GPU_QUEUE: Final = "gpu"
CPU_FINETUNE_QUEUE: Final = f"{CPU_QUEUE}.finetune"
GPU_FINETUNE_QUEUE: Final = f"{GPU_QUEUE}.finetune"

Role = Literal["forecast", "finetune"]
"""What a worker does. Workers for finetuning also run backtests: both are long and read the data folder."""

TASK_ROLES: Final[dict[str, Role]] = {
    FORECAST_TASK: "forecast",
    FINETUNE_TASK: "finetune",
    BACKTEST_TASK: "finetune",
}
"""The role of the workers that take each task of jobs."""

Kind = Literal["forecast", "finetune", "backtest"]
"""What a job asks for."""

KIND_TASKS: Final[dict[Kind, str]] = {
    "forecast": FORECAST_TASK,
    "finetune": FINETUNE_TASK,
    "backtest": BACKTEST_TASK,
}

Priority = Literal["high", "normal", "low"]
ContextPolicy = Literal["exact", "rolling"]
CELERY_PRIORITIES: Final[dict[Priority, int]] = {"high": 0, "normal": 3, "low": 6}
"""Celery over Redis serves 0 first."""

KEY_PREFIX: Final = "kronos:"

DEAD_KEY: Final = f"{KEY_PREFIX}dead"
"""The list of messages that could not be read or answered, newest first: JSON objects."""

MAX_ID_CHARS: Final = 200

MODEL_NAME: Final = r"[a-z0-9][a-z0-9._-]{0,63}"
"""A regular expression for names of registered models."""


def worker_key(node: str) -> str:
    """The key of a worker's announced status; ``node`` is its Celery node name."""
    return f"{KEY_PREFIX}worker:{node}"


def job_key(job_id: str) -> str:
    """The key of a job's record."""
    return f"{KEY_PREFIX}job:{job_id}"


def jobs_key(kind: Kind) -> str:
    """The key of the newest jobs of a kind: a sorted set of ids by the time of their admission."""
    return f"{KEY_PREFIX}jobs:{kind}"


def result_key(job_id: str) -> str:
    """Celery's key of a job's stored state, and the channel on which each new state is published."""
    return f"celery-task-meta-{job_id}"


SHARED_KEY: Final = f"{KEY_PREFIX}jobs_shared"
"""The number of jobs that were sent although an equal one was under way or done."""

WEBHOOKS_KEY: Final = f"{KEY_PREFIX}webhooks"
"""The sorted set of jobs with a webhook, by the time until which a process of the HTTP API holds it."""


def webhook_key(job_id: str) -> str:
    """The key of a webhook: the job's address in the HTTP API, a space, and the address to call."""
    return f"{KEY_PREFIX}webhook:{job_id}"


def cancel_key(job_id: str) -> str:
    """The key that holds a request to cancel a job, and the channel on which it is published."""
    return f"{KEY_PREFIX}cancel:{job_id}"
