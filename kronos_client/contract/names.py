"""What apps and workers share: names of tasks, queues and keys in Redis, and ids of jobs.

Clients refuse a job whose id is not valid. A worker answers it with BAD_MESSAGE if Redis can store that.
"""

import uuid
from typing import Final, Literal, TypeGuard

from kronos_client.contract.errors import ErrorCode, JobError

SCHEMA_VERSION: Final = 1
"""The newest version of the job's layout that this code reads, and the one that it writes."""

FORECAST_TASK: Final = "kronos.forecast"
FINETUNE_TASK: Final = "kronos.finetune"
BACKTEST_TASK: Final = "kronos.backtest"
STATUS_TASK: Final = "kronos.status"
FEED_APPEND_TASK: Final = "kronos.feed.append"

LOAD_MODEL_COMMAND: Final = "kronos_load_model"
"""A command of Celery's remote control. It takes ``model``, and ``ask``, an id. Requests with one id are one
request that is repeated until it has its answer."""

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
SHARED_PREFIX: Final = "equal-"
"""Start of the ids that a client makes from a job's content, so that equal jobs have one."""

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


def is_shared(job_id: str) -> bool:
    """Whether several senders may have sent the job: none of them may cancel it or delete its result."""
    return job_id.startswith(SHARED_PREFIX)


def is_job_id(value: object) -> TypeGuard[str]:
    """Whether a value may be a job's id: a text that fits into a key of Redis and a line of a log."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS and value.isprintable()


def can_be_answered(value: object) -> TypeGuard[str]:
    """Whether an error can be stored under this id, even if it is not valid as the id of a job."""
    try:
        return isinstance(value, str) and len(value.encode()) > 0
    except UnicodeEncodeError:  # half of a character
        return False


def checked_job_id(job_id: object = None) -> str:
    """The id as text, or a new one for None.

    Raises:
        JobError: BAD_VALUE for a text that no worker accepts as an id.
    """
    if job_id is None:
        return str(uuid.uuid4())
    text = str(job_id)
    if not is_job_id(text):
        message = f"job_id must be 1 to {MAX_ID_CHARS} printable characters; leave it out to get a new one"
        raise JobError(ErrorCode.BAD_VALUE, message, "job_id")
    return text
