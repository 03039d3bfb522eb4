"""reachable: a Redis that does not answer, as one coded error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from redis.exceptions import AuthenticationError, RedisError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.connection import REFUSED

NOT_REACHED: Final = (RedisError, OSError)


@contextmanager
def reachable(job_id: str | None = None) -> Iterator[None]:
    """Raise JobError BROKER_UNREACHABLE if Redis does not answer."""
    try:
        yield
    except NOT_REACHED as error:
        raise unreachable(error, job_id) from error


def unreachable(error: BaseException, job_id: str | None = None) -> JobError:
    """The error for a Redis that does not answer, or refuses the password."""
    message = (
        f"{REFUSED} ({type(error).__name__})"
        if is_refused(error)
        else f"Redis does not answer ({type(error).__name__}): start it, or correct KRONOS_REDIS_URL"
    )
    return JobError(ErrorCode.BROKER_UNREACHABLE, message, None, {} if job_id is None else {"job_id": job_id})


def unanswered(job_id: str | None = None) -> JobError:
    """The error for a Redis that did not answer in time."""
    return unreachable(TimeoutError(), job_id)


def is_refused(error: BaseException) -> bool:
    """Whether Redis refuses the user or password, so that waiting does not help."""
    return AuthenticationError in (type(error), type(error.__cause__))
