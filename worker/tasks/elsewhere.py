"""The task of the other role, answered: Celery drops a task that it does not know without an answer."""

from typing import Any, Final, NoReturn

from worker.app import app
from worker.contract.errors import ErrorCode, JobError
from worker.contract.names import (
    CPU_FINETUNE_QUEUE,
    CPU_QUEUE,
    FINETUNE_TASK,
    FORECAST_TASK,
    GPU_FINETUNE_QUEUE,
    GPU_QUEUE,
    Role,
)
from worker.settings import get_settings

TASKS: Final[dict[Role, str]] = {"forecast": FORECAST_TASK, "finetune": FINETUNE_TASK}
QUEUES: Final[dict[Role, tuple[str, str]]] = {
    "forecast": (CPU_QUEUE, GPU_QUEUE),
    "finetune": (CPU_FINETUNE_QUEUE, GPU_FINETUNE_QUEUE),
}
OTHER_ROLE: Final[dict[Role, Role]] = {"forecast": "finetune", "finetune": "forecast"}


@app.task(name=TASKS[OTHER_ROLE[get_settings().role]], throws=(JobError,), typing=False)
def elsewhere(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Refuse what was sent to the wrong queue."""
    role = OTHER_ROLE[get_settings().role]
    cpu, gpu = QUEUES[role]
    raise JobError(
        ErrorCode.INVALID_INPUT,
        f"{TASKS[role]} was sent to a worker that does not {role}: send it to the queue {cpu} or {gpu}",
        None,
        {"queues": [cpu, gpu]},
    )
