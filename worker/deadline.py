"""Deadline: when a job must be done, counted from when it was sent. In the engine, the engine ends it."""

import math
import time
from dataclasses import dataclass
from typing import Self

from kronos_client.contract.errors import ErrorCode, JobError


@dataclass(frozen=True)
class Deadline:
    """Of a job.

    Attributes:
        at: By time.monotonic; infinite if the job has none.
    """

    at: float

    @classmethod
    def after(cls, waited_s: float, deadline_s: float | None) -> Self:
        """That of a job that was sent ``waited_s`` ago."""
        return cls(math.inf if deadline_s is None else time.monotonic() + deadline_s - waited_s)

    def has_passed(self, *, grace_s: float = 0.0) -> bool:
        """Whether it has, ``grace_s`` ago."""
        return time.monotonic() >= self.at + grace_s


def late(what: str, remedy: str = "allow more time") -> JobError:
    """The error of a job that missed its deadline."""
    return JobError(ErrorCode.DEADLINE, f"{what}; {remedy}", "deadline_s")
