"""Files that are there whole or not at all. No torch."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from kronos_model.errors import DiskFull

STAGING = ".{name}.{unique}.tmp"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what shall replace ``path`` at the end of the block; a failure leaves the old file.

    Raises DiskFull where it cannot be written.
    """
    staging = path.with_name(STAGING.format(name=path.name, unique=uuid.uuid4().hex))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with staging.open("xb") as file:
            mode = os.fstat(file.fileno()).st_mode
        yield staging
        staging.chmod(mode)  # safetensors writes for the owner alone, whatever the umask
        with staging.open("rb+") as file:
            os.fsync(file.fileno())  # a rename can reach the disk before the content does
        staging.replace(path)
        _flush_folder(path.parent)
    except (OSError, SafetensorError) as error:  # safetensors wraps the system's errors in its own
        raise DiskFull(f"{path} cannot be written: {error}; make room, or choose another folder") from error
    finally:
        staging.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """So that the new name of a file outlives a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
