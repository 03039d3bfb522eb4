"""Connections to Redis: their URL and TLS, a pool of them, calls that are sent once, scripts, and errors."""

import os
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from queue import Empty
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from redis import BlockingConnectionPool, CredentialProvider, Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from kronos_client.contract.errors import ErrorCode, JobError

URL_FILE: Final = "KRONOS_REDIS_URL_FILE"


class UrlCredentials(CredentialProvider):
    """User and password of a URL, or of the file in ``KRONOS_REDIS_URL_FILE`` if it names the same server."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)

    def get_credentials(self) -> Any:
        """A tuple of user and password, as far as given. redis-py calls it for each connection."""
        in_file = _in_file()
        parts = in_file if in_file and _place(in_file) == _place(self._parts) else self._parts
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return (user, password) if user else (password,) if password else ()

    def __json__(self) -> str:
        """What a worker's ``inspect stats`` shows, which Flower reads too: no password."""
        return "from the URL of Redis"

    async def get_credentials_async(self) -> Any:
        """The same for redis-py's asyncio client."""
        return self.get_credentials()


def split_credentials(url: str) -> tuple[str, dict[str, Any]]:
    """The URL without user and password, and redis-py's option with their provider."""
    parts = urlsplit(url)
    if not parts.scheme.startswith("redis"):
        return url, {}
    user_info = parts.netloc.rpartition("@")[0]
    return url.replace(f"//{user_info}@", "//", 1), {"credential_provider": UrlCredentials(url)}


def _in_file() -> SplitResult | None:
    try:
        return urlsplit(Path(os.environ[URL_FILE]).read_text(encoding="utf-8").strip())
    except (KeyError, OSError, ValueError):  # not set, or being replaced: the former password is tried
        return None


def _place(parts: SplitResult) -> tuple[str, str, str]:
    return parts.scheme, parts.netloc.rpartition("@")[2], parts.path


TLS_SCHEME: Final = "rediss"
TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
VERIFY: Final = "ssl_cert_reqs"
VERIFICATIONS: Final = {"required": ssl.CERT_REQUIRED, "none": ssl.CERT_NONE}


class TlsError(ValueError):
    """TLS that cannot be used. The text repeats nothing of the URL."""


def with_tls(url: str, files: Mapping[str, Path | None]) -> str:
    """The URL with all TLS options in its query. The server is verified unless the URL disables it.

    Args:
        url: As the operator wrote it. It is changed only if it begins with ``rediss://``.
        files: CA certificates, own certificate, its key, by ``TLS_FILES``.

    Raises:
        TlsError: Parameters contradict each other, or a file cannot be used.
    """
    given = {name: str(path.absolute()) for name, path in files.items() if path is not None}
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if query.keys() - {VERIFY, *TLS_FILES}:  # kombu ignores most others
        raise TlsError(f"a URL takes only {', '.join((VERIFY, *TLS_FILES))} after ?: remove the rest")
    if parts.scheme != TLS_SCHEME:
        if given or query:
            raise TlsError("files for TLS are set, but the URL is without TLS: write rediss://")
        return url
    if query.setdefault(VERIFY, "required") not in VERIFICATIONS:
        raise TlsError(f"{VERIFY} in the URL must be required or none")
    for name, path in given.items():
        if query.setdefault(name, path) != path:
            raise TlsError(f"{name} in the URL and its setting name different files: remove one of them")
    _check_files(*(query.get(name) for name in TLS_FILES))
    return parts._replace(query=urlencode(query, quote_via=quote, safe="/")).geturl()


def tls_options(url: str) -> dict[str, Any] | None:
    """The URL's TLS options as Flower reads them (Celery's ``broker_use_ssl``); None without TLS."""
    parts = urlsplit(url)
    if parts.scheme != TLS_SCHEME:
        return None
    query = dict(parse_qsl(parts.query))
    options: dict[str, Any] = {name: query[name] for name in TLS_FILES if name in query}
    return options | {VERIFY: VERIFICATIONS[query[VERIFY]]}


def _check_files(ca: str | None, certificate: str | None, key: str | None) -> None:
    """Check the files now: a wrong one would make every connection fail with an unclear message."""
    if any("%" in path for path in (ca, certificate, key) if path is not None):
        raise TlsError("a file for TLS has a % in its path, which Celery misreads: rename it")
    context = ssl.create_default_context()
    try:
        if ca is not None:
            context.load_verify_locations(ca)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise TlsError(f"the CA file {ca} (KRONOS_REDIS_CA_FILE) cannot be used: {_reason(error)}") from None
    if key is not None and certificate is None:
        raise TlsError("a key for TLS is set without its certificate: set that too")
    try:
        if certificate is not None:
            context.load_cert_chain(certificate, key, password=lambda: "")  # else ssl prompts on the terminal
    except (OSError, ValueError) as error:
        raise TlsError(
            f"the certificate {certificate} (KRONOS_REDIS_CERTIFICATE_FILE) or its key cannot be used: "
            f"{_reason(error)}; use a key without a passphrase"
        ) from None


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not a PEM file of that kind"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


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


SCRIPTS: Final = Path(__file__).parent / "lua"
INCLUDE: Final = re.compile(r"^-- include: (\w+)$", re.MULTILINE)


@cache
def read_script(name: str, folder: Path = SCRIPTS) -> str:
    """The text of ``name.lua``, each line ``-- include: other`` replaced by ``other.lua``.

    A script that is not in ``folder`` is read from this package's folder.
    """
    path = folder / f"{name}.lua"
    text = (path if path.exists() else SCRIPTS / path.name).read_text(encoding="utf-8")
    return INCLUDE.sub(lambda line: read_script(line[1], folder), text)
