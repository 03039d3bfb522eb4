"""Messages as clients send them, checked before Celery sees them.

Celery 5.7 and kombu 5.7 crash on many unexpected messages, drop others without an answer, unpack compressed
ones to any size, and log some whole. They get what passes here: a message of protocol 2 (1 becomes 2) for one
of our tasks, with checked headers only and a parsed body. For the layout see docs.celeryq.dev, "Message
Protocol".
"""

import json
import math
import re
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from itertools import accumulate
from typing import Any, Final

import numpy as np
from celery.utils.time import maybe_iso8601
from pydantic_core import from_json

from kronos_client.contract.columns import decode_base64
from kronos_client.contract.names import MAX_ID_CHARS, can_be_answered, is_job_id
from kronos_client.redis.message import kwargsrepr
from kronos_model.text import printable
from worker.celery_types import Body

MAX_CONTAINERS: Final = 100_000
"""JSON arrays and objects in a message. Parsed empty ones take 30 times the memory of their text."""
MAX_DEPTH: Final = 64
"""Nesting of arrays and objects. Python's JSON parser recurses, on stacks of different sizes."""
BRACKETS: Final = b"[]{}"
NO_BRACKETS: Final = bytes(set(range(256)) - set(BRACKETS))
MAX_REPR_CHARS: Final = 200
"""Length of a job's text in Flower."""
_ID_IN_TEXT: Final = re.compile(rb'"(?:id|correlation_id)": ?("(?:[^"\\]|\\.)+")')
END_OF_TIME: Final = 253_370_764_800.0
"""The start of the year 9999 as Unix time. Python's datetime ends with that year."""
TRACEPARENT: Final = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C's header of a trace."""
NUMBERS: Final = ("retries", "group_index", "replaced_task_nesting")
IDS: Final = ("root_id", "parent_id", "group")
SIGNATURE_LISTS: Final = ("callbacks", "errbacks", "chain")


class BadMessage(Exception):
    """A message that no task can take. ``job_id`` is set if it names one that can be answered."""

    def __init__(self, reason: str, job_id: str | None = None) -> None:
        super().__init__(reason)
        self.job_id = job_id


@dataclass(frozen=True)
class TaskMessage:
    """A message that Celery can read.

    Attributes:
        payload: As kombu expects it, without the delivery's properties. Its body is ``arguments``, and its
            content type none, so that neither kombu nor Celery decodes it.
        arguments: The parsed body, ``[args, kwargs, embed]``.
        eta: Unix time before which the task must not run.
        expires: Unix time after which no worker may take it.
    """

    payload: dict[str, Any]
    arguments: Body
    eta: float | None
    expires: float | None


def read_message(raw: bytes, tasks: Container[str]) -> TaskMessage:
    """Check a message as it was on its list, and remove the parts that are not checked.

    Raises:
        BadMessage: None of these tasks can take it.
    """
    envelope = _object(_parse(raw, "the message"), "the message")
    headers = _object(envelope.get("headers") or {}, "its headers")
    properties = _object(envelope.get("properties") or {}, "its properties")
    job_id = headers.get("id", properties.get("correlation_id"))
    try:
        body = _body(envelope, headers, properties)
        if "task" not in headers and isinstance(body, dict):
            headers, body = body, [body.get("args", []), body.get("kwargs", {}), {}]
            job_id = headers.get("id")
        task = headers.get("task")
        if not isinstance(task, str):
            raise BadMessage("it names no task")
        if task not in tasks:
            hint = "if another app uses this queue's name, set KRONOS_QUEUE_PREFIX"
            raise BadMessage(f"there is no task {_text(task)!r} here; {hint}")
        if not is_job_id(headers.get("id")):
            raise BadMessage(f"its id is not a printable text of 1 to {MAX_ID_CHARS} characters")
        arguments = _arguments(body)
        reprs = {"argsrepr": "()", "kwargsrepr": _text(kwargsrepr(arguments[1]))}
        payload = {
            "body": arguments,
            "content-encoding": "binary",
            "headers": _checked(headers) | reprs,
            "properties": {"correlation_id": headers["id"], "reply_to": _text(properties.get("reply_to"))},
        }
        return TaskMessage(payload, arguments, _moment(headers, "eta"), _moment(headers, "expires"))
    except BadMessage as error:
        raise BadMessage(str(error), job_id if can_be_answered(job_id) else None) from None


def too_large(ends: bytes, num_bytes: int, max_bytes: int) -> BadMessage:
    """The error for a message that is too large; only its two ends were read."""
    job_id = None
    if found := _ID_IN_TEXT.findall(ends):
        with suppress(ValueError):
            job_id = json.loads(found[-1])
    reason = f"the message takes {num_bytes} bytes, the limit is {max_bytes}"
    return BadMessage(reason, job_id if can_be_answered(job_id) else None)


def _parse(text: bytes, what: str) -> object:
    """Parse JSON in UTF-8 only, as kombu does. Python would accept other encodings."""
    codes = np.frombuffer(text, np.uint8)
    num_opened = np.count_nonzero(codes | 0x20 == ord("{"))  # "[" becomes "{" too
    if num_opened > MAX_CONTAINERS:
        raise BadMessage(f"{what} has more than {MAX_CONTAINERS} arrays and objects")
    if num_opened > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise BadMessage(f"{what} is nested more than {MAX_DEPTH} deep")
    with suppress(ValueError):
        return from_json(text, cache_strings="keys")
    try:
        return json.loads(text.decode())  # from_json refuses half characters
    except (ValueError, RecursionError):  # ValueError: also for other encodings and huge numbers
        raise BadMessage(f"{what} is not JSON in UTF-8") from None


def _depth(text: bytes) -> int:
    """How deep the brackets are nested, including those in strings."""
    steps = (1 if bracket in b"[{" else -1 for bracket in text.translate(None, NO_BRACKETS))
    return max(accumulate(steps, initial=0))


def _object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise BadMessage(f"{what} is not a JSON object")
    return value


def _body(envelope: dict[str, object], headers: dict[str, object], properties: dict[str, object]) -> object:
    if headers.get("compression"):
        raise BadMessage("its body is compressed; send it as it is")
    if envelope.get("content-type") != "application/json":
        raise BadMessage("its content type is not application/json; set task_serializer to json")
    text, encoding = envelope.get("body"), properties.get("body_encoding")
    if not isinstance(text, str):
        raise BadMessage("its body is not text")
    if encoding not in ("base64", None):
        raise BadMessage("its body_encoding is not base64")
    try:
        body = decode_base64(text) if encoding else text.encode()
    except ValueError:
        raise BadMessage("its body is not base64") from None
    return _parse(body, "its body")


def _arguments(body: object) -> Body:
    """The body, once it is ``[args, kwargs, embed]`` and Celery can use all of ``embed``."""
    if not isinstance(body, list) or len(body) != 3:
        raise BadMessage("its body is not [args, kwargs, embed]")
    args, kwargs, embed = body
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not isinstance(embed, dict | None):
        raise BadMessage("its body is not a list, an object and an object")
    if "self" in kwargs:
        raise BadMessage("'self' is not an argument of a task")
    for name, value in (embed or {}).items():
        if name in SIGNATURE_LISTS:
            is_fine = value is None or (isinstance(value, list) and all(map(_is_signature, value)))
        else:
            is_fine = name == "chord" and (value is None or _is_signature(value))
        if not is_fine:
            raise BadMessage(f"its {_text(name)!r} is not a Celery task signature")
    return body


def _is_signature(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("task"), str)
        and isinstance(value.get("args", []), list)
        and isinstance(value.get("kwargs", {}), dict)
        and isinstance(value.get("options", {}), dict)
    )


def _checked(headers: dict[str, object]) -> dict[str, object]:
    """The headers for Celery. ``ignore_result`` is left out: every result is stored."""
    checked: dict[str, object] = {"lang": "py", "task": headers["task"], "id": headers["id"]}
    for name in IDS:
        value = headers.get(name)
        if value is not None and not is_job_id(value):
            raise BadMessage(f"its {name} is not an id")
        checked[name] = value
    for name in NUMBERS:
        value = headers.get(name)
        if value is not None and (not isinstance(value, int) or not 0 <= value < 2**31):
            raise BadMessage(f"its {name} is not a number of at least 0")
        checked[name] = 0 if value is None and name == "retries" else value
    # Celery would use this machine's clock, and its threads have no time limits.
    checked |= {"expires": None, "timelimit": [None, None], "time_limit_s": _time_limit_s(headers)}
    checked["origin"] = _text(headers.get("origin"))
    traceparent = headers.get("traceparent")
    if isinstance(traceparent, str) and TRACEPARENT.fullmatch(traceparent):
        checked["traceparent"] = traceparent
    return checked


def _time_limit_s(headers: dict[str, object]) -> float | None:
    """The shorter of Celery's hard and soft time limits; 0 and null are none."""
    limits = headers.get("timelimit") or [None, None]
    if not isinstance(limits, list) or not all(map(_is_time_limit, limits)):
        raise BadMessage("its timelimit is not two numbers of seconds")
    return min(filter(None, limits), default=None)


def _is_time_limit(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and 0 <= value < math.inf)


def _moment(headers: Mapping[str, Any], name: str) -> float | None:
    """The header's Unix time. Without an offset it is UTC, as in Celery."""
    value = headers.get(name)
    if value is None:
        return None
    try:
        moment: Any = maybe_iso8601(value)
        unix_time = float((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise BadMessage(f"its {name} is not an ISO 8601 timestamp") from None
    if not 0 <= unix_time < END_OF_TIME:
        raise BadMessage(f"its {name} is not between the years 1970 and 9999")
    return unix_time


def _text(value: object) -> str:
    """The start of a text, without control characters."""
    return printable(value[:MAX_REPR_CHARS], "?") if isinstance(value, str) else ""
