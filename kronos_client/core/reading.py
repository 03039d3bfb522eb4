"""readable: apps' own objects may raise anything while they are read, which is told as one coded error."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from kronos_client.contract.errors import ErrorCode, JobError

MAX_REASON_CHARS: Final = 200


@contextmanager
def readable(what: str, field: str | None = None) -> Iterator[None]:
    """Turns whatever is raised, but want of memory, into JobError BAD_TYPE."""
    try:
        yield
    except (JobError, MemoryError):
        raise
    except Exception as error:  # any object may be given, and raise anything once it is looked at
        raise JobError(ErrorCode.BAD_TYPE, f"{what} cannot be read ({_reason(error)})", field) from error


def _reason(error: Exception) -> str:
    text = ""
    with suppress(Exception):  # how it is written may be the app's own too
        text = str(error)[:MAX_REASON_CHARS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
