"""Finding: what one check found."""

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
