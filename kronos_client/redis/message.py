"""A job's message and its event, written as Celery 5.7 and kombu's Redis transport write them.

Celery's protocol 2: https://docs.celeryq.dev/en/stable/internals/protocol.html. kombu puts it into an
envelope of JSON, with the body in base64.
"""

import hashlib
import json
import os
import socket
import sys
import time
import uuid
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

from pydantic_core import to_json

from kronos_client.contract.names import CELERY_PRIORITIES, KIND_TASKS, Kind, Priority
from kronos_model.text import cut

HOST: Final = socket.gethostname()
AFTER_TIME: Final = b64encode(b'}}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]')
"""The end of a message's body, for a task without callbacks."""
NO_TIMES: Final[dict[str, Any]] = {"eta": None, "expires": None}
NOT_USED: Final[dict[str, Any]] = {
    **dict.fromkeys(("shadow", "group", "group_index", "stamped_headers")),
    **{"timelimit": [None, None], "ignore_result": False, "replaced_task_nesting": 0, "stamps": {}},
}
CONTENT: Final = {"content-encoding": "utf-8", "content-type": "application/json"}


class Sending(NamedTuple):
    """A job to send.

    ``content`` is its canonical JSON, ``kwargsrepr`` the arguments that Flower shows, ``traceparent`` the
    span that sends it.
    """

    job_id: str
    content: str
    queue: str
    priority: Priority = "normal"
    kind: Kind = "forecast"
    kwargsrepr: str = "{}"
    traceparent: str = ""
    deadline_s: float | None = None


def canonical_json(payload: Mapping[str, Any]) -> str:
    """A text that is the same for two jobs with the same content, whenever they were submitted."""
    lasting = {name: value for name, value in payload.items() if name != "submitted_at"}
    return json.dumps(lasting, sort_keys=True, separators=(",", ":"))


def fingerprint(payload: Mapping[str, Any] | str) -> str:
    """A short text that is the same for two jobs, or their canonical JSON, with the same content."""
    content = payload if isinstance(payload, str) else canonical_json(payload)
    return hashlib.sha256(content.encode()).hexdigest()


def write_message(job: Sending, event_exchange: str) -> tuple[bytes, bytes, bytes]:
    """The message of a job in two parts, and that of the event ``task-sent``.

    ``lua/admit.lua`` writes the time of admission, in base64, between the two parts.
    """
    origin, parent, task = f"gen{os.getpid()}@{HOST}", current_task(), KIND_TASKS[job.kind]
    root_id = (parent and (parent.request.root_id or parent.request.id)) or job.job_id
    known = {"root_id": root_id, "parent_id": parent and parent.request.id, "retries": 0} | NO_TIMES
    headers = known | NOT_USED | {"lang": "py", "task": task, "id": job.job_id, "origin": origin}
    headers |= {"argsrepr": "()", "kwargsrepr": job.kwargsrepr}  # Celery itself repeats all candles
    if job.traceparent:
        headers["traceparent"] = job.traceparent
    sent_to = {"exchange": "", "routing_key": job.queue}
    properties = {"correlation_id": job.job_id, "reply_to": "", "delivery_mode": 2, "delivery_info": sent_to}
    event = known | {"type": "task-sent", "uuid": job.job_id, "name": task, "queue": job.queue, **sent_to}
    event |= {"args": "()", "kwargs": job.kwargsrepr, "hostname": origin, "pid": os.getpid()}
    event |= {"timestamp": time.time(), "clock": 1}  # receivers replace the clock
    event["utcoffset"] = (time.altzone if time.localtime().tm_isdst > 0 else time.timezone) / 3600
    published_to = {
        "delivery_mode": 1,
        "delivery_info": {"exchange": event_exchange, "routing_key": "task.sent"},
    }
    body = f'[[], {{"job": {job.content[:-1]}, "submitted_at": '.encode()
    body += b" " * (-len(body) % 3)  # so that base64 can go on after it
    return (
        b'{"body": "' + b64encode(body),
        AFTER_TIME + _envelope(headers, properties, CELERY_PRIORITIES[job.priority]),
        b'{"body": "' + b64encode(to_json(event)) + _envelope({"hostname": origin}, published_to, 0),
    )


def _envelope(headers: dict[str, Any], properties: dict[str, Any], priority: int) -> bytes:
    """The rest of kombu's envelope, after the body's last character. The scripts find the id near its end."""
    properties |= {"priority": priority, "body_encoding": "base64", "delivery_tag": str(uuid.uuid4())}
    return b'", ' + to_json(CONTENT | {"headers": headers, "properties": properties})[1:]


def current_task() -> Any:
    """The task that a Celery worker runs on this thread; None if none, or if nothing imported Celery."""
    state: Any = sys.modules.get("celery._state")
    return state and state.get_current_worker_task()


MAX_SERIES: Final = 3
MAX_CHARS: Final = 32
"""The most characters of one name."""


def kwargsrepr(kwargs: Any) -> str:
    """A short form of a task's keyword arguments: ``{'series': 'BTC, ETH', 'pred_len': 96, 'samples': 20}``.

    A model and a device are in it if the job names them. A feed's job shows the feed, a finetuning job its
    model's name and, as a backtest, its only path of candles. Nothing was checked before, so invalid parts
    are left out.
    """
    job = kwargs.get("job") if isinstance(kwargs, Mapping) else None
    if not isinstance(job, Mapping):
        return "{}"
    shown: dict[str, Any] = {}
    name, series, data, feed = (job.get(field) for field in ("name", "series", "data", "feed"))
    if isinstance(name, str):
        shown["name"] = _text(name)
    if isinstance(data, Mapping) and isinstance(data.get("path"), str):
        shown["data"] = _text(data["path"])
    if _is_list(series):
        ids = [_text(entry.get("id")) for entry in series[:MAX_SERIES] if isinstance(entry, Mapping)]
        more = [f"… ({len(series)})"] if len(series) > MAX_SERIES else []
        shown["series"] = ", ".join(ids + more)
    if isinstance(feed, Mapping):
        shown["feed"] = _text(feed.get("name"))
    if (horizon := horizon_of(job)) is not None:
        shown["pred_len"] = horizon
    for field in ("model", "device"):
        if isinstance(job.get(field), str) and job[field] != "auto":
            shown[field] = _text(job[field])
    sampling = job.get("sampling")
    if isinstance(sampling, Mapping) and isinstance(sampling.get("sample_count"), int):
        shown["samples"] = sampling["sample_count"]
    return repr(shown)


def horizon_of(job: Mapping[str, Any]) -> int | None:
    """The bars that a job asks for, by ``pred_len`` or its first series; None if it names neither."""
    series = job.get("series")
    first = series[0] if _is_list(series) and series and isinstance(series[0], Mapping) else {}
    future = first.get("future_timestamps")
    horizon = job.get("pred_len") or (len(future) if _is_list(future) else None)
    return horizon if isinstance(horizon, int) else None


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) and value.isprintable() else "?"
    return cut(text, MAX_CHARS)
