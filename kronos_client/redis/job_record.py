"""JobRecord: a job's record in Redis, whose fields other programs may have written; Place."""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from kronos_client.contract.worker_status import WorkerStatus
from kronos_client.redis.queues import ROLE_QUEUES, role_of

GONE_AFTER_TIMEOUTS: Final = 2
"""Timeouts after a delivery ran out. A message that is there is renewed or put back earlier."""


@dataclass(frozen=True)
class Place:
    """Where a job's message is, as ``lua/places.lua`` documents it.

    Attributes:
        list: Where it waits, or will wait after its delay.
        until: When its delay ends, or the delivery that holds it unless renewed: Unix time in seconds.
        timeout_s: From a renewal of the delivery to its end.
        tag: Of the delivery.
    """

    kind: Literal["list", "delayed", "held", "none"]
    list: str | None = None
    until: float | None = None
    timeout_s: float = 0.0
    tag: str | None = None


class JobRecord:
    """Reads the fields of a record. All times are Redis's clock, Unix time in seconds."""

    def __init__(self, fields: Mapping[bytes, bytes]) -> None:
        self._fields = fields

    def text(self, name: str) -> str | None:
        """A field; None if there is none."""
        value = self._fields.get(name.encode())
        return None if value is None else value.decode(errors="replace")

    def number(self, name: str) -> float | None:
        """A field that is a finite number; None if it is not."""
        return _number(self.text(name))

    @property
    def has_ended(self) -> bool:
        """Whether the job ended, even if its outcome is no longer kept."""
        return b"ended_at" in self._fields

    @property
    def place(self) -> Place | None:
        """Where the message is; None if that is unknown, as in a record of release 0.1.0."""
        kind, _, rest = (self.text("at") or "").partition(" ")
        match kind, rest.split(" "):
            case "none", [""]:
                return Place("none")
            case "list", _:
                return Place("list", rest)
            case "delayed", [until, _, *_] if _number(until) is not None:
                return Place("delayed", rest.partition(" ")[2], _number(until))
            case "held", [until, timeout, tag] if None not in (_number(until), _number(timeout)):
                return Place("held", None, _number(until), _number(timeout) or 0.0, tag)
        return None

    def is_gone(self, now: float) -> bool:
        """Whether the job has not ended, and its message is removed or overdue for long.

        Its worker lives while it renews its claim, whatever became of the message.
        """
        place = self.place
        if place is None or self.has_ended:
            return False
        renewed_at = self.number("renewed_at") or 0.0
        ends_at = max(place.until or 0.0, renewed_at + place.timeout_s)
        is_overdue = ends_at + GONE_AFTER_TIMEOUTS * place.timeout_s < now
        return place.kind == "none" or (place.kind == "held" and is_overdue)

    def is_gone_for(self, workers: Iterable[WorkerStatus]) -> bool:
        """Whether that can be said of a message that ``is_gone`` with these workers.

        Ready ones put overdue messages back. Those of release 0.1.0, which do not announce their own version,
        do not note where messages are.
        """
        workers, sent_to = list(workers), self.text("list")
        roles = set(ROLE_QUEUES) if sent_to is None else {role_of(sent_to)}
        ready = {worker.role for worker in workers if worker.is_ready}
        is_noted = all("kronos" in worker.versions for worker in workers)
        return is_noted and (self.text("at") == "none" or roles <= ready)


def _number(text: str | None) -> float | None:
    with suppress(ValueError):
        number = float(text or "")
        return number if math.isfinite(number) else None
    return None
