"""The checks of ``kronos check``. Each problem comes with a remedy. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "failed"]


@dataclass
class Finding:
    """The outcome of one check, and its remedy, which is dropped if the outcome is ``ok``.

    ``failed`` means that jobs cannot run or would be lost. ``warning`` means a lesser problem.
    """

    check: str
    level: Level
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.level == "ok":
            self.remedy = ""


def is_ok(findings: Iterable[Finding]) -> bool:
    """Whether no check failed."""
    return all(finding.level != "failed" for finding in findings)
