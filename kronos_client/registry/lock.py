"""The lock of the shared model folder, which processes of several machines may write to."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One writer of the model folder at a time. Raises OSError if the lock file cannot be written."""
    with (folder / ".lock").open("a") as file:
        with suppress(OSError):  # a network folder without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
