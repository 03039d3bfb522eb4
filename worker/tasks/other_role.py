"""Jobs for workers of the other role are refused."""

from typing import NoReturn

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import TASK_ROLES
from worker.app import app
from worker.celery_types import AnyTask
from worker.settings import get_settings
from worker.tasks.attempt import ClaimedRequest


def refuse_job(self: AnyTask, /, *_args: object, **_kwargs: object) -> NoReturn:
    """Refuse a job for workers of the other role. Celery would drop an unknown task without an answer."""
    role = TASK_ROLES[self.name]
    cpu, gpu = get_settings().queue_names.of_role(role)
    raise JobError(
        ErrorCode.INVALID_INPUT,
        f"{self.name} was sent to a worker that does not {role}: send it to the queue {cpu} or {gpu}",
        None,
        {"queues": [cpu, gpu]},
    )


for _task, _role in TASK_ROLES.items():
    if _role != get_settings().role:
        app.task(name=_task, bind=True, throws=(JobError,), typing=False, Request=ClaimedRequest)(refuse_job)
