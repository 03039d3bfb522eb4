"""Refuses jobs for workers of the other role. Celery would drop an unknown task without an answer."""

from typing import Any, Final, NoReturn

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import FINETUNE_TASK, FORECAST_TASK, Role
from worker.app import app
from worker.settings import get_settings
from worker.tasks.attempt import ClaimedRequest

TASKS: Final[dict[Role, str]] = {"forecast": FORECAST_TASK, "finetune": FINETUNE_TASK}
OTHER_ROLE: Final[dict[Role, Role]] = {"forecast": "finetune", "finetune": "forecast"}


@app.task(
    name=TASKS[OTHER_ROLE[get_settings().role]], throws=(JobError,), typing=False, Request=ClaimedRequest
)
def wrong_role(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Refuse a job that was sent to the wrong queue."""
    role = OTHER_ROLE[get_settings().role]
    cpu, gpu = get_settings().queue_names.of_role(role)
    raise JobError(
        ErrorCode.INVALID_INPUT,
        f"{TASKS[role]} was sent to a worker that does not {role}: send it to the queue {cpu} or {gpu}",
        None,
        {"queues": [cpu, gpu]},
    )
