"""What workers of both roles answer: ``kronos.status``, other roles' jobs, Celery's control commands."""

import logging
from collections.abc import Callable
from typing import Any, Final, NoReturn

from celery import Task
from celery.worker.control import Panel

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import STATUS_TASK, TASK_ROLES, Role
from kronos_client.redis.routing import live_workers
from worker.app import app
from worker.process import current_process
from worker.settings import get_settings
from worker.tasks.attempt import ClaimedRequest

log = logging.getLogger(__name__)

OTHER_ROLE: Final[dict[Role, Role]] = {"forecast": "finetune", "finetune": "forecast"}
NOT_LOGGED: Final = {"election", "enable_events", "heartbeat"}
"""Control commands that change no work. Flower sends ``enable_events`` every 5 s."""


@app.task(name=STATUS_TASK, bind=True)
def status(self: "Task[Any, Any]") -> dict[str, Any]:
    """``{"workers": [...]}``: this process's present status, then the others as announced."""
    process = current_process()
    others = [worker for worker in live_workers(process.redis) if worker.node != process.node]
    return {"workers": [worker.as_json() for worker in (process.status(), *others)]}


def refuse_job(self: "Task[Any, Any]", /, *_args: Any, **_kwargs: Any) -> NoReturn:
    """Refuse a job for workers of the other role. Celery would drop an unknown task without an answer."""
    role = OTHER_ROLE[get_settings().role]
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


_add_consumer: Final[Callable[..., dict[str, Any]]] = Panel.data["add_consumer"]


def add_consumer(state: Any, queue: Any, **_: Any) -> dict[str, Any]:
    """Take jobs from the other queue of the worker's role too. Both may be served on any device."""
    settings = get_settings()
    queues = settings.queue_names.of_role(settings.role)
    if queue not in queues:
        reason = f"this worker takes jobs only from {' and '.join(queues)}: it would discard other messages"
        return {"error": f"{queue!r:.200} is refused: {reason}"}
    return _add_consumer(state, queue)


def logged(name: str, command: Callable[..., Any]) -> Callable[..., Any]:
    """The control command with a line in the log before it runs: some end the worker."""

    def run(state: Any, **arguments: Any) -> Any:
        log.info("control command %s, arguments %.500r", name, arguments)
        return command(state, **arguments)

    return run


for _name, _info in list(Panel.meta.items()):
    if _info.type == "control" and _name not in NOT_LOGGED:
        _command = add_consumer if _name == "add_consumer" else Panel.data[_name]
        Panel.register(name=_name, **_info._asdict())(logged(_name, _command))
