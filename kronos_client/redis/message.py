"""A job's message and its event, written as Celery 5.7 and kombu's Redis transport write them.

Celery's protocol 2: https://docs.celeryq.dev/en/stable/internals/protocol.html. kombu puts it into an
envelope of JSON, with the body in base64.
"""

import json
import os
import socket
import time
import uuid
from base64 import b64encode
from typing import Any, Final, NamedTuple

from kronos_client.contract.names import CELERY_PRIORITIES, KIND_TASKS, Kind, Priority
from kronos_client.current_task import current_task

HOST: Final = socket.gethostname()
NO_WORKFLOW: Final = '{"callbacks": null, "errbacks": null, "chain": null, "chord": null}'
"""The last part of a message's body, for a task without callbacks."""
AFTER_TIME: Final = b64encode(f"}}}}, {NO_WORKFLOW}]".encode()).decode()
NO_TIMES: Final[dict[str, Any]] = {"eta": None, "expires": None}
NOT_USED: Final[dict[str, Any]] = {
    **dict.fromkeys(("shadow", "group", "group_index", "stamped_headers")),
    **{"timelimit": [None, None], "ignore_result": False, "replaced_task_nesting": 0, "stamps": {}},
}
CONTENT: Final = {"content-encoding": "utf-8", "content-type": "application/json"}


class Message(NamedTuple):
    """A message in two parts. ``lua/admit.lua`` writes the time of admission, in base64, between them.

    ``event`` is the message of the event ``task-sent``.
    """

    before_time: str
    after_time: str
    event: str


def write_message(
    job_id: str, kind: Kind, content: str, shown: str, queue: str, priority: Priority, event_exchange: str
) -> Message:
    """The message of a job.

    Args:
        content: The job as canonical JSON, without its submission time.
        shown: The arguments that Flower shows. By default Celery repeats them, candles and all.
    """
    origin, parent = f"gen{os.getpid()}@{HOST}", current_task()
    root_id = (parent and (parent.request.root_id or parent.request.id)) or job_id
    known = {"root_id": root_id, "parent_id": parent and parent.request.id, "retries": 0} | NO_TIMES
    headers = known | NOT_USED | {"lang": "py", "task": KIND_TASKS[kind], "id": job_id, "origin": origin}
    headers |= {"argsrepr": "()", "kwargsrepr": shown}
    sent_to = {"exchange": "", "routing_key": queue}
    properties = {"correlation_id": job_id, "reply_to": "", "delivery_mode": 2, "delivery_info": sent_to}
    event = known | {"type": "task-sent", "uuid": job_id, "name": KIND_TASKS[kind], "queue": queue, **sent_to}
    event |= {"args": "()", "kwargs": shown, "hostname": origin, "pid": os.getpid(), "timestamp": time.time()}
    event["clock"] = 1  # receivers replace it
    event["utcoffset"] = (time.altzone if time.localtime().tm_isdst > 0 else time.timezone) / 3600
    published_to = {"exchange": event_exchange, "routing_key": "task.sent"}
    body = f'[[], {{"job": {content[:-1]}, "submitted_at": '.encode()
    body += b" " * (-len(body) % 3)  # so that base64 can go on after it
    return Message(
        f'{{"body": "{b64encode(body).decode()}',
        f"{AFTER_TIME}{_envelope(headers, properties, CELERY_PRIORITIES[priority])}",
        f'{{"body": "{b64encode(json.dumps(event).encode()).decode()}'
        + _envelope({"hostname": origin}, {"delivery_mode": 1, "delivery_info": published_to}, 0),
    )


def _envelope(headers: dict[str, Any], properties: dict[str, Any], priority: int) -> str:
    """The rest of kombu's envelope, after the body's last character. The scripts find the id near its end."""
    own = {"priority": priority, "body_encoding": "base64", "delivery_tag": str(uuid.uuid4())}
    rest = json.dumps({**CONTENT, "headers": headers, "properties": properties | own})
    return f'", {rest[1:]}'
