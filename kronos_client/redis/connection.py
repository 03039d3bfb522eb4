"""Connections to Redis: a pool of them, calls that are sent once, and errors."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty
from typing import Any, Final, cast

from redis import BlockingConnectionPool, Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import DEAD_KEY, KEY_PREFIX, SHARED_KEY
from kronos_client.redis.url import SentinelUrl, split_credentials
from kronos_model.text import escaped, one_line

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 5.0
MAX_CONNECTIONS: Final = 32
"""Connections of one client: a GPU worker's threads exceed redis-py's default of 100."""
MAX_CHARS: Final = 200
"""Of an error that is shown."""
REFUSED = (
    "Redis refuses the user or password, or requires one: correct KRONOS_REDIS_URL or its file, such as "
    "redis://USER:PASSWORD@HOST:6379/0"
)


REPLICATED_KEY: Final = f"{KEY_PREFIX}replicated"
REPLICAS_TIMEOUT_MS: Final = 1000
"""For replicas to confirm a write."""

OPTIONS: Final[dict[str, Any]] = {
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "socket_timeout": ANSWER_TIMEOUT_S,
    "socket_keepalive": True,
    "health_check_interval": 25,
}
"""Of every connection. redis-py retries connecting and the command, so the times multiply: with one retry, it
gives up after 20 s on a server that accepts and never answers."""


def pool_options(url: str, max_connections: int, *, is_async: bool = False) -> dict[str, Any]:
    """The options of a pool of connections, in which a thread or task waits for a free one."""
    bare, options = split_credentials(url)
    if sentinel := SentinelUrl.from_url(url):
        from kronos_client.redis.sentinel import connection_options

        options |= connection_options(sentinel, is_async=is_async)
        bare = f"redis:///{sentinel.database}"
    limits = {"max_connections": max_connections, "timeout": CONNECT_TIMEOUT_S + ANSWER_TIMEOUT_S}
    return {"url": bare, **options, **limits, **OPTIONS}


def connect(
    url: str, *, decode_responses: bool = True, protocol: int | None = None, min_replicas: int = 0
) -> Redis:
    """A pooled client that gives up in bounded time, and survives a restart of Redis.

    With ``MAX_CONNECTIONS`` in use, a thread waits for a free one.

    Args:
        min_replicas: Replicas that ``run_script`` and ``ask_once`` wait for.
    """
    pool = BlockingConnectionPool.from_url(
        **pool_options(url, MAX_CONNECTIONS),
        decode_responses=decode_responses,
        protocol=protocol,
        retry=Retry(ConstantBackoff(0.2), 1),
    )
    client = cast("_Client", _Client.from_pool(pool))  # so that closing it closes the pool
    client.min_replicas = min_replicas
    return client


class _Client(Redis):
    """If a connection fails, closes the idle ones too: they may be silent too, and each costs a timeout."""

    min_replicas = 0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """As redis-py's, but an error names the keys of another type."""
        untyped: Any = super()
        try:
            return untyped.execute_command(*args, **options)
        except ResponseError as error:
            raise _named(self, args, error) from None

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


WRONG_TYPE: Final = "WRONGTYPE"


def _named(redis: Redis, command: Sequence[Any], error: ResponseError) -> ResponseError:
    """The error itself; if a key has another type, it names the key, of a script those that are strings."""
    if WRONG_TYPE not in str(error) or f"{WRONG_TYPE} of" in str(error):  # lua/expect.lua names the key
        return error
    is_script = str(command[0]).startswith("EVAL")
    keys = command[3 : 3 + int(command[2])] if is_script else command[1:2]
    if command[0] == "XREAD":
        keys = command[-2:-1]
    with suppress(RedisError):
        keys = [key for key in keys if is_script and redis.type(key) in ("string", b"string")] or keys
    return ResponseError(f"{WRONG_TYPE} of {', '.join(map(str, keys))}: {error}")


def read_bytes(redis: Any, *command: str | int) -> list[Any]:
    """The answer undecoded: where a text is not UTF-8, redis-py fails in the middle of an answer."""
    answer = redis.execute_command(*command, NEVER_DECODE=True)
    return list(answer)


class NotConfirmed(Exception):
    """Redis may have executed a command: it was sent, and its answer is lost."""


class NotReplicated(RedisError):
    """A command was executed, but a failover may lose it: too few replicas have it."""


def _await_replicas(count: int) -> list[tuple[Any, ...]]:
    """Commands for the end of a connection's others; the last answer is the number of replicas.

    WAIT counts replicas that have this connection's last write. A script that finds its work done writes
    nothing, so there is a write of its own.
    """
    return [("SET", REPLICATED_KEY, "1"), ("WAIT", count, REPLICAS_TIMEOUT_MS)] if count else []


def _not_replicated(answer: Any, count: int) -> Exception | None:
    """Why what was written does not count as such, by the answer to WAIT."""
    if isinstance(answer, Exception) or int(answer) >= count:
        return answer if isinstance(answer, Exception) else None
    return NotReplicated(f"{answer} of {count} replicas have it (KRONOS_REDIS_MIN_REPLICAS)")


def run_script(redis: Redis, script: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
    """A script's answer, once ``min_replicas`` have what it wrote. Raises NotReplicated."""
    if not (count := getattr(redis, "min_replicas", 0)):
        return script(keys=keys, args=args)
    pipe: Any = redis.pipeline(transaction=False)
    script(keys=keys, args=args, client=pipe)
    for command in _await_replicas(count):
        pipe.execute_command(*command)
    answer, _, reached = pipe.execute()
    if error := _not_replicated(reached, count):
        raise error
    return answer


def ask_once(redis: Redis, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands together, and never again. An error stands in place of its answer.

    It is NotConfirmed if the answer is lost, or too few replicas have what was written. Any other means that
    the command was not executed.
    """
    if count := getattr(redis, "min_replicas", 0):
        *answers, _, reached = _ask_once(redis, [*commands, *_await_replicas(count)])
        if error := _not_replicated(reached, count):
            lost = NotConfirmed(str(error))
            answers = [answer if isinstance(answer, Exception) else lost for answer in answers]
        return answers
    return _ask_once(redis, commands)


def _ask_once(redis: Redis, commands: Sequence[Sequence[Any]]) -> list[Any]:
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
    return [
        _named(redis, command, answer) if isinstance(answer, ResponseError) else answer
        for command, answer in zip(commands, answers, strict=True)
    ]


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
    """Raise JobError BROKER_UNREACHABLE if Redis is away, KEY_UNREADABLE if a key has another type."""
    try:
        yield
    except NOT_REACHED as error:
        raise unreachable(error, job_id) from error


OF_A_CLUSTER: Final = (AskError, ClusterCrossSlotError, ClusterDownError)  # MovedError is an AskError
CLUSTER_REFUSED: Final = (
    "Redis runs as a cluster, which Celery cannot use: let KRONOS_REDIS_URL name a Redis or Valkey with "
    "cluster mode disabled, or sentinels (sentinel://HOST1,HOST2/0?master=NAME)"
)


REMEDIES: Final = {
    "WRONGTYPE": "delete that key, which another program wrote",
    "OOM|OutOfMemory": "make room in Redis, or raise its maxmemory",
    "MISCONF": "make room on Redis's disk, and let it write there",
    "NOPERM|NoPermission|can't (run|acc|pub)": "give Redis's user the rights in deploy/redis-users.acl",
    "NOAUTH|WRONGPASS|Authentication": "correct user and password in KRONOS_REDIS_URL or its file",
    "READONLY|ReadOnly|MASTERDOWN|MasterDown": "let KRONOS_REDIS_URL name the primary",
    "BUSY ": "end the script that runs in Redis (SCRIPT KILL)",
    "NotReplicated": "start Redis's replicas, or lower KRONOS_REDIS_MIN_REPLICAS",
    "NOREPLICAS": "start Redis's replicas, or lower its min-replicas-to-write",
    "max number of clients": "raise Redis's maxclients, or close connections of others",
}
"""What to do, by a pattern of the error."""
OTHERWISE: Final = "see Redis's log"


def refusal(error: BaseException) -> tuple[str, str]:
    """What Redis answered instead of doing it, on one line, and what to do."""
    text = f"{type(error).__name__}: {one_line(str(error))}"
    remedy = next((remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, text)), OTHERWISE)
    return escaped(text, MAX_CHARS), remedy


AWAY: Final = (ErrorCode.BROKER_UNREACHABLE, ErrorCode.REDIS_CLUSTER)
"""Codes of errors that say nothing about the call: once Redis answers as it should, the same call works."""


def refuse_unusable(redis: Redis) -> None:
    """Raise JobError if this Redis is part of a cluster or refuses the password; not if it is away."""
    try:
        redis.exists(DEAD_KEY, SHARED_KEY)  # of different slots; INFO may be forbidden
    except NOT_REACHED as error:
        if isinstance(error, OF_A_CLUSTER) or is_refused(error):
            raise unreachable(error) from error


def unreachable(error: BaseException, job_id: str | None = None) -> JobError:
    """The error for a Redis that does not answer, or refuses the password or the command."""
    details = {} if job_id is None else {"job_id": job_id}
    if isinstance(error, OF_A_CLUSTER):
        return JobError(ErrorCode.REDIS_CLUSTER, CLUSTER_REFUSED, None, details)
    name = type(error).__name__
    message = f"Redis does not answer ({name}): start it, or correct KRONOS_REDIS_URL"
    if isinstance(error, ResponseError):
        text, remedy = refusal(error)
        message = f"Redis refuses the command ({text}): {remedy}"
    if is_refused(error):
        message = f"{REFUSED} ({name})"
    if isinstance(error, NotReplicated):
        message = f"{error}: try again, and see that the replicas of Redis follow it"
    is_unreadable = isinstance(error, ResponseError) and WRONG_TYPE in str(error)
    code = ErrorCode.KEY_UNREADABLE if is_unreadable else ErrorCode.BROKER_UNREACHABLE
    return JobError(code, message, None, details)


def unanswered(job_id: str | None = None) -> JobError:
    """The error for a Redis that did not answer in time."""
    return unreachable(TimeoutError(), job_id)


def is_refused(error: BaseException) -> bool:
    """Whether Redis refuses the user or password, so that waiting does not help."""
    return AuthenticationError in (type(error), type(error.__cause__))
