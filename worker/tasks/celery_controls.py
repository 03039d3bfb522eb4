"""Celery's control commands: which queues may be added, and a line in the log for what changes something."""

import logging
from collections.abc import Callable
from typing import Final

from celery.worker.control import Panel

from worker.settings import get_settings

log = logging.getLogger(__name__)

NOT_LOGGED: Final = {"election", "enable_events", "heartbeat"}
"""Control commands that change no work. Flower sends ``enable_events`` every 5 s."""

_add_consumer: Final[Callable[..., dict[str, object]]] = Panel.data["add_consumer"]


def add_consumer(state: object, queue: object, **_: object) -> dict[str, object]:
    """Take jobs from the other queue of the worker's role too. Both may be served on any device."""
    settings = get_settings()
    queues = settings.queue_names.of_role(settings.role)
    if queue not in queues:
        reason = f"this worker takes jobs only from {' and '.join(queues)}: it would discard other messages"
        return {"error": f"{queue!r:.200} is refused: {reason}"}
    return _add_consumer(state, queue)


def logged(name: str, command: Callable[..., object]) -> Callable[..., object]:
    """The control command with a line in the log before it runs: some end the worker."""

    def run(state: object, **arguments: object) -> object:
        log.info("control command %s, arguments %.500r", name, arguments)
        return command(state, **arguments)

    return run


for _name, _info in list(Panel.meta.items()):
    if _info.type == "control" and _name not in NOT_LOGGED:
        _command = add_consumer if _name == "add_consumer" else Panel.data[_name]
        Panel.register(name=_name, **_info._asdict())(logged(_name, _command))
