"""Refuses jobs for workers of the other role. Celery would drop an unknown task without an answer."""

from typing import Any, Final, NoReturn

from celery import Task

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import TASK_ROLES, Role
from worker.app import app
from worker.settings import get_settings
from worker.tasks.attempt import ClaimedRequest

OTHER_ROLE: Final[dict[Role, Role]] = {"forecast": "finetune", "finetune": "forecast"}


def wrong_role(self: "Task[Any, Any]", /, *_args: Any, **_kwargs: Any) -> NoReturn:
    """Refuse a job that was sent to the wrong queue."""
    role = OTHER_ROLE[get_settings().role]
    cpu, gpu = get_settings().queue_names.of_role(role)
    raise JobError(
        ErrorCode.INVALID_INPUT,
        f"{self.name} was sent to a worker that does not {role}: send it to the queue {cpu} or {gpu}",
        None,
        {"queues": [cpu, gpu]},
    )


for task, taker in TASK_ROLES.items():
    if taker != get_settings().role:
        app.task(name=task, bind=True, throws=(JobError,), typing=False, Request=ClaimedRequest)(wrong_role)
