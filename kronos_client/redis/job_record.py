"""JobRecord: a job's record in Redis, whose fields other programs may have written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from kronos_client.redis.queues import ROLE_QUEUES, role_of
from kronos_client.redis.routing import ANNOUNCEMENT_TTL_S

if TYPE_CHECKING:
    from kronos_client.contract.worker_status import WorkerStatus

GONE_AFTER_TIMEOUTS: Final = 2
"""Timeouts after a delivery ran out. A message that is there is renewed or put back earlier."""
NUMBER: Final = r"\d{1,11}(?:\.\d*)?"
PLACE: Final = re.compile(
    rf"(?:list|delayed (?P<due_at>{NUMBER})) (?P<list>.+)"
    rf"|held (?P<held_until>{NUMBER}) (?P<timeout_s>{NUMBER}) \S+|none",
    re.DOTALL,
)
"""The forms of the field ``at``, which ``lua/places.lua`` documents."""


class JobRecord:
    """Reads a record. Times are Redis's clock, Unix time in seconds; None if unknown.

    Attributes:
        fields: The record as text.
        at: Where the message is: list, delayed, held or none. Empty if it is not noted, as in release 0.1.0.
        list: Where the message waits, or will wait after its delay.
        until: When its delay ends, or the delivery that holds it unless renewed.
        timeout_s: From the delivery's last renewal to its end; 0 if the message is not held.
    """

    def __init__(self, fields: Mapping[bytes, bytes]) -> None:
        self.fields = {
            name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()
        }
        match = PLACE.fullmatch(self.fields.get("at", ""))
        self.at = match[0].partition(" ")[0] if match else ""
        self.list = match["list"] if match else None
        self.until = as_number(match["due_at"] or match["held_until"]) if match else None
        self.timeout_s = (as_number(match["timeout_s"]) if match else None) or 0.0

    def number(self, name: str) -> float | None:
        """A field that is a number."""
        return as_number(self.fields.get(name))

    def is_gone(self, now: float) -> bool:
        """Whether the job has not ended, and its message was removed or is overdue for long.

        A worker that renews its claim lives, whatever became of the message. While a worker that died with
        the job is still announced, it counts as one that would put the message back.
        """
        ends_at = max(self.until or 0.0, (self.number("renewed_at") or 0.0) + self.timeout_s)
        overdue_s = max(GONE_AFTER_TIMEOUTS * self.timeout_s, ANNOUNCEMENT_TTL_S)
        is_overdue = self.at == "held" and ends_at + overdue_s < now
        return "ended_at" not in self.fields and (self.at == "none" or is_overdue)

    def is_gone_for(self, workers: Iterable[WorkerStatus]) -> bool:
        """Whether a message that ``is_gone`` surely is, with these workers.

        Ready ones put overdue messages back. Those of release 0.1.0, which do not announce their own version,
        do not note where messages are.
        """
        workers, sent_to = list(workers), self.fields.get("list")
        roles = set(ROLE_QUEUES) if sent_to is None else {role_of(sent_to)}
        is_noted = all("kronos" in worker.versions for worker in workers)
        return is_noted and (self.at == "none" or roles <= {one.role for one in workers if one.is_ready})


def as_number(text: str | None) -> float | None:
    """A number that one of our scripts wrote; None for any other text."""
    return float(text) if text and re.fullmatch(NUMBER, text) else None
