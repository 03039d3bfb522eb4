"""Files that are on disk whole or not at all. No torch."""

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kronos_model.errors import DiskFull

STAGING = ".{name}.{unique}.tmp"
STAGING_AGE_S = 24 * 3600
"""A staging folder of this age was left by a process that crashed."""
FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT}) | FORBIDDEN
"""Errors of writing that last until room is made, or writing is allowed."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path to write to; the file there replaces ``path`` at the end of the block.

    A failure leaves the old file as it is.
    """
    staging = path.with_name(STAGING.format(name=path.name, unique=uuid.uuid4().hex))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with staging.open("xb") as file:
            mode = os.fstat(file.fileno()).st_mode
        yield staging
        staging.chmod(mode)  # safetensors writes for the owner alone, whatever the umask
        sync(staging)
        staging.replace(path)
        sync(path.parent)
    finally:
        staging.unlink(missing_ok=True)


@contextmanager
def disk_errors(path: Path, *further: type[Exception]) -> Iterator[None]:
    """Raise DiskFull with a remedy for every error of writing ``path`` in the block.

    ``further`` are errors that stand for the system's; safetensors wraps those in its own.
    """
    kinds: tuple[type[Exception], ...] = (OSError, *further)
    try:
        yield
    except kinds as error:
        raise DiskFull(not_written(path, error)) from error


def not_written(path: Path, error: Exception) -> str:
    """The message about a file that an error kept from being written."""
    is_forbidden = isinstance(error, OSError) and error.errno in FORBIDDEN
    remedy = "let this process write there" if is_forbidden else "make room"
    return f"{path} cannot be written: {error}; {remedy}, or choose another folder"


def sweep(folder: Path, staging: str) -> None:
    """Remove the staging folders, of names that match a pattern, that crashes left."""
    for left in folder.glob(staging):
        with suppress(OSError):  # another process may be removing it
            if time.time() - left.stat().st_mtime > STAGING_AGE_S:
                shutil.rmtree(left)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk.

    Needed before a rename, which can reach the disk before the content does.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)
