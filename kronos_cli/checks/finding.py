"""The outcome of one check."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check, and its remedy.

    ``failed`` means that jobs cannot run or would be lost. ``warning`` means a lesser problem. ``remedy`` is
    empty if there is no problem.
    """

    check: str
    level: Level
    message: str
    remedy: str = ""


def is_ok(findings: Iterable[Finding]) -> bool:
    """Whether no check failed."""
    return all(finding.level != "failed" for finding in findings)
