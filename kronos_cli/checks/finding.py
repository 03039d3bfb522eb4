"""Finding: what one check found."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """What one check found, and what to do about it.

    ``failed`` means that jobs cannot be done, or would be lost; ``warning`` that something is not as it
    should be. ``remedy`` is empty where all is well.
    """

    check: str
    level: Level
    message: str
    remedy: str = ""


def is_ok(findings: Iterable[Finding]) -> bool:
    """Whether none failed."""
    return all(finding.level != "failed" for finding in findings)
