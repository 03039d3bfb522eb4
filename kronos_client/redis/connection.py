"""Connections to Redis: a pool of them, calls that are sent once, and errors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty
from typing import Any, Final

from redis import BlockingConnectionPool, Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.url import split_credentials

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 5.0
MAX_CONNECTIONS: Final = 32
"""Connections of one client: a GPU worker's threads exceed redis-py's default of 100."""
REFUSED = "Redis refuses the user or password, or requires one: write redis://USER:PASSWORD@HOST:6379/0"


OPTIONS: Final[dict[str, Any]] = {
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "socket_timeout": ANSWER_TIMEOUT_S,
    "socket_keepalive": True,
    "health_check_interval": 25,
}
"""Of every connection. redis-py retries connecting and the command, so the times multiply: with one retry, it
gives up after 20 s on a server that accepts and never answers."""


def pool_options(url: str, max_connections: int) -> dict[str, Any]:
    """The options of a pool of connections, in which a thread or task waits for a free one."""
    bare, credentials = split_credentials(url)
    limits = {"max_connections": max_connections, "timeout": CONNECT_TIMEOUT_S + ANSWER_TIMEOUT_S}
    return {"url": bare, **credentials, **limits, **OPTIONS}


def connect(url: str, *, decode_responses: bool = True, protocol: int | None = None) -> Redis:
    """A pooled client that gives up in bounded time, and survives a restart of Redis.

    With ``MAX_CONNECTIONS`` in use, a thread waits for a free one.
    """
    pool = BlockingConnectionPool.from_url(
        **pool_options(url, MAX_CONNECTIONS),
        decode_responses=decode_responses,
        protocol=protocol,
        retry=Retry(ConstantBackoff(0.2), 1),
    )
    return _Client.from_pool(pool)  # so that closing it closes the pool


class _Client(Redis):
    """If a connection fails, closes the idle ones too: they may be silent too, and each costs a timeout."""

    def _close_connection(self, *args: Any, **kwargs: Any) -> None:
        """Called by redis-py (8.1) before it repeats a command."""
        super()._close_connection(*args, **kwargs)
        # Out of the pool first: redis-py's own ``disconnect`` also closes one that a thread takes meanwhile.
        pool: Any = self.connection_pool
        idle = []
        with suppress(Empty):
            while True:
                idle.append(pool.pool.get_nowait())
        for connection in reversed(idle):
            if connection is not None:
                connection.disconnect()
            pool.pool.put_nowait(connection)


def read_bytes(redis: Any, *command: str | int) -> list[Any]:
    """The answer undecoded: where a text is not UTF-8, redis-py fails in the middle of an answer."""
    answer = redis.execute_command(*command, NEVER_DECODE=True)
    return list(answer)


class NotConfirmed(Exception):
    """Redis may have executed a command: it was sent, and its answer is lost."""


def ask_once(redis: Redis, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands together, and never again. An error stands in place of its answer.

    It is NotConfirmed if the answer is lost. Any other means that the command was not executed.
    """
    pool: Any = redis.connection_pool
    try:
        connection = pool.get_connection()
    except (RedisError, OSError) as error:
        return [error] * len(commands)
    answers, is_sent = list[Any](), False
    try:
        connection.check_health()
        is_sent = True
        # In one piece: redis-py would make a system call of each 6 kB.
        connection.send_packed_command([b"".join(connection.pack_commands(commands))], check_health=False)
        while len(answers) < len(commands):
            answers.append(_answer(connection))
    except (RedisError, OSError) as error:
        redis._close_connection(connection)
        lost: Exception = error
        if is_sent:
            lost = NotConfirmed(type(error).__name__)
            lost.__cause__ = error
        answers += [lost] * (len(commands) - len(answers))
    except BaseException:
        connection.disconnect()  # answers are left in it
        raise
    finally:
        pool.release(connection)
    return answers


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except BusyLoadingError as error:  # an answer, although it is a ConnectionError
        return error
    except (NoConnection, NoAnswer):
        raise
    except RedisError as error:
        return error


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
    name = type(error).__name__
    message = f"Redis does not answer ({name}): start it, or correct KRONOS_REDIS_URL"
    if is_refused(error):
        message = f"{REFUSED} ({name})"
    return JobError(ErrorCode.BROKER_UNREACHABLE, message, None, {} if job_id is None else {"job_id": job_id})


def unanswered(job_id: str | None = None) -> JobError:
    """The error for a Redis that did not answer in time."""
    return unreachable(TimeoutError(), job_id)


def is_refused(error: BaseException) -> bool:
    """Whether Redis refuses the user or password, so that waiting does not help."""
    return AuthenticationError in (type(error), type(error.__cause__))
