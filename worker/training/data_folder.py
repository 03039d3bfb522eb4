"""Checks the data paths of jobs, which must be inside one folder. No torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.text import excerpt

FIELD: Final = "data.path"


@dataclass(frozen=True)
class DataFolder:
    """``KRONOS_DATA_FOLDER``; ``root`` is None if the worker has none."""

    root: Path | None

    def check(self, path: str) -> Path:
        """Resolve a job's path, a file or a folder. No link in it may lead out of the data folder.

        Raises:
            JobError: DATA_NOT_ALLOWED, also for a missing path: a job must not find out what is outside.
        """
        if self.root is None:
            raise _refusal("this worker has no data folder (KRONOS_DATA_FOLDER); send candles inline")
        if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
            raise _refusal(f"{excerpt(path)} is not relative to the data folder")
        root = self.root.resolve()
        try:
            named = (root / path).resolve(strict=True)
            if not named.is_relative_to(root):
                raise _refusal(f"{excerpt(path)} leads out of the data folder")
            for entry in named.rglob("*"):  # follows no links to folders; readers do not follow them either
                if entry.is_symlink() and not entry.resolve().is_relative_to(root):
                    inside = excerpt(str(entry.relative_to(root)))
                    raise _refusal(f"{inside} is a link that leads out of the data folder")
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, or no valid file name
            raise _refusal(f"{excerpt(path)} cannot be read in the data folder") from error
        return named


def _refusal(reason: str) -> JobError:
    return JobError(ErrorCode.DATA_NOT_ALLOWED, f"{FIELD}: {reason}", FIELD)
