"""Celery's control commands: which are refused, and a line in the log for what changes something."""

import logging
from collections.abc import Callable
from typing import Final

from celery.worker.control import Panel

from worker.process import WorkerProcess
from worker.settings import get_settings

log = logging.getLogger(__name__)

NOT_LOGGED: Final = {"election", "enable_events", "heartbeat"}
"""Control commands that change no work. Flower sends ``enable_events`` every 5 s."""

STOP: Final = "by the control command shutdown, or SIGTERM"
MORE_WORKERS: Final = "no thread of this worker's pool computes forecasts: start more workers instead"
REFUSED: Final = {
    "pool_grow": MORE_WORKERS,
    "pool_shrink": MORE_WORKERS,
    "autoscale": MORE_WORKERS,
    "pool_restart": f"stop this worker {STOP}, and start it again instead",
    "rate_limit": "jobs would wait in this worker beyond their deadlines; limit what apps send instead, and "
    "the API's users by KRONOS_API_REQUESTS_PER_MINUTE",
}
"""The reasons to refuse commands, and what to do instead."""

_add_consumer: Final[Callable[..., dict[str, object]]] = Panel.data["add_consumer"]
_cancel_consumer: Final[Callable[..., dict[str, object]]] = Panel.data["cancel_consumer"]


def refused(what: object, reason: str) -> dict[str, object]:
    """The answer to a command that is not obeyed."""
    return {"error": f"{what!r:.200} is refused: {reason}"}


def add_consumer(state: object, queue: object, **_: object) -> dict[str, object]:
    """Take jobs from the other queue of the worker's role too. Both may be served on any device."""
    settings = get_settings()
    queues = settings.queue_names.of_role(settings.role)
    if queue not in queues:
        reason = f"this worker takes jobs only from {' and '.join(queues)}: it would discard other messages"
        return refused(queue, reason)
    return _add_consumer(state, queue)


def cancel_consumer(state: object, queue: object, **_: object) -> dict[str, object]:
    """Leave the other queue of the worker's role. A ready worker takes jobs from its own."""
    process = WorkerProcess.current()
    if queue == process.queue or queue not in process.settings.queue_names.of_role(process.settings.role):
        return refused(queue, f"this worker takes jobs from {process.queue} until it ends; stop it {STOP}")
    return _cancel_consumer(state, queue)


def refuser(name: str) -> Callable[..., object]:
    """The control command that is always refused."""
    return lambda state, **_: refused(name, REFUSED[name])


COMMANDS: Final[dict[str, Callable[..., object]]] = {
    "add_consumer": add_consumer,
    "cancel_consumer": cancel_consumer,
    **{name: refuser(name) for name in REFUSED},
}


def logged(name: str, command: Callable[..., object]) -> Callable[..., object]:
    """The control command with a line in the log before it runs: some end the worker."""

    def run(state: object, **arguments: object) -> object:
        log.info("control command %s, arguments %.500r", name, arguments)
        return command(state, **arguments)

    return run


for _name, _info in list(Panel.meta.items()):
    if _info.type == "control" and _name not in NOT_LOGGED:
        Panel.register(name=_name, **_info._asdict())(logged(_name, COMMANDS.get(_name, Panel.data[_name])))
