"""readable: one coded error for anything that an app's own objects raise when they are read; within."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from kronos_client.contract.errors import ErrorCode, JobError

MAX_REASON_CHARS: Final = 200


@contextmanager
def readable(what: str, field: str | None = None) -> Iterator[None]:
    """Raise JobError BAD_TYPE for any exception but MemoryError."""
    try:
        yield
    except (JobError, MemoryError):
        raise
    except Exception as error:  # an app's object may raise anything when it is read
        raise JobError(ErrorCode.BAD_TYPE, f"{what} cannot be read ({_reason(error)})", field) from error


@contextmanager
def within(place: str) -> Iterator[None]:
    """Put ``place``, such as ``series.0``, before the field of a JobError."""
    try:
        yield
    except JobError as error:
        field = place if error.field is None else f"{place}.{error.field}"
        raise JobError(error.code, error.message, field, error.details) from error.__cause__


def _reason(error: Exception) -> str:
    text = ""
    with suppress(Exception):  # the app's own __str__ may raise too
        text = str(error)[:MAX_REASON_CHARS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
