"""What a client has put into Redis."""

import base64
import json
from typing import Any


def messages(redis: Any, key: str) -> list[dict[str, Any]]:
    """The messages of a list."""
    return [json.loads(text) for text in redis.lrange(key, 0, -1)]


def body(message: dict[str, Any]) -> Any:
    """A message's body: arguments, keyword arguments, and what follows."""
    assert message["properties"]["body_encoding"] == "base64"
    return json.loads(base64.b64decode(message["body"]))


def sent_job(redis: Any, key: str) -> dict[str, Any]:
    """The job of the only message of a list."""
    (message,) = messages(redis, key)
    return body(message)[1]["job"]
