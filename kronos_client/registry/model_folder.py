"""The model folder, which processes of several machines read and write: its lock, and its jobs' folders.

Errors of reading reach jobs: they name the model and the file, never the path.
"""

import fcntl
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from kronos_client.contract.refusals import first_reason
from kronos_model.errors import CheckpointError

RUNS: Final = ".runs"


def job_folder(model_folder: Path, job_id: str) -> Path:
    """The folder of a finetuning job or backtest. Any text may be an id, so the name is a hash of it."""
    return model_folder / RUNS / hashlib.sha256(job_id.encode()).hexdigest()[:32]


def output_folder(model_folder: Path, job_id: str) -> Path:
    """What the job itself writes: training's output, or a backtest's forecasts and report."""
    return job_folder(model_folder, job_id) / "run"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One writer of the model folder at a time. Raises OSError if the lock file cannot be written."""
    with (folder / ".lock").open("a") as file:
        with suppress(OSError):  # a network folder without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def reading(what: str, remedy: str = "") -> Iterator[None]:
    """Raise CheckpointError with ``what`` if it cannot be read, or its content cannot be used."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{what} cannot be read: {reason_of(error)}.") from error
    except ValidationError as error:
        raise CheckpointError(f"{what} cannot be used: {first_reason(error)}.{remedy}") from None


def entries_in(folder: Path, what: str) -> Sequence[str]:
    """Names in a folder; none if it does not exist."""
    with reading(f"The folder of {what}"), suppress(FileNotFoundError, NotADirectoryError):
        return [entry.name for entry in folder.iterdir()]
    return []


def is_inside(folder: Path, path: Path) -> bool:
    """Whether a path, with all links followed, lies in a folder. It need not exist."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links in a circle
        return False


def reason_of(error: OSError) -> str:
    """The system's message, without the path that the error's own text has."""
    return error.strerror or type(error).__name__


def sha256_of(path: Path) -> str:
    """A file's SHA-256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
