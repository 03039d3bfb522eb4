"""The states of jobs that a test's calls publish."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis

from kronos_client.contract.names import result_key
from tests.waiting import WAIT_S


@contextmanager
def published_states(redis: Redis) -> Iterator[list[dict[str, Any]]]:
    """Gives a list that has all states, in order, once the block has ended."""
    states: list[dict[str, Any]] = []
    with redis.pubsub(ignore_subscribe_messages=True) as channel:
        channel.psubscribe(result_key("*"))
        channel.get_message(timeout=WAIT_S)
        yield states
        redis.publish(result_key(""), "end")
        while (message := channel.get_message(timeout=WAIT_S))["data"] != "end":
            states.append(json.loads(message["data"]))
