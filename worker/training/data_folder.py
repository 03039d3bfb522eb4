"""Checks the data paths of jobs, which must be inside one folder. No torch."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.text import excerpt

FIELD: Final = "data.path"


class DataFolder:
    """``KRONOS_DATA_FOLDER``; ``root`` is None if the worker has none."""

    def __init__(self, root: Path | None) -> None:
        self.root = root

    def check(self, path: str, field: str = FIELD) -> Path:
        """Resolve a job's path, a file or a folder. No link in it may lead out of the data folder.

        Raises:
            JobError: DATA_NOT_ALLOWED, also for a missing path: a job must not find out what is outside.
        """
        if self.root is None:
            raise _refusal(field, "this worker has no data folder (KRONOS_DATA_FOLDER); send candles inline")
        if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
            raise _refusal(field, f"{excerpt(path)} is not relative to the data folder")
        root = self.root.resolve()
        try:
            named = (root / path).resolve(strict=True)
            if not named.is_relative_to(root):
                raise _refusal(field, f"{excerpt(path)} leads out of the data folder")
            for entry in _entries(named):
                if entry.is_symlink() and not entry.resolve().is_relative_to(root):
                    inside = entry.relative_to(root)
                    raise _refusal(
                        field, f"{excerpt(str(inside))} is a link that leads out of the data folder"
                    )
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, or no valid file name
            raise _refusal(field, f"{excerpt(path)} cannot be read in the data folder") from error
        return named


def _entries(folder: Path) -> Iterator[Path]:
    """All files and folders below. Links to folders are not followed; readers do not follow them either."""
    for parent, folders, files in os.walk(folder, followlinks=False):
        for name in (*folders, *files):
            yield Path(parent) / name


def _refusal(field: str, reason: str) -> JobError:
    return JobError(ErrorCode.DATA_NOT_ALLOWED, f"{field}: {reason}", field)
