"""Redis behind Sentinel: each new connection asks the sentinels where the primary is.

Nothing here is imported unless a URL begins with ``sentinel://``.
"""

from typing import Any

from redis import Connection, SSLConnection
from redis.asyncio import Connection as AsyncConnection
from redis.asyncio import SSLConnection as AsyncSSLConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import ReadOnlyError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel

from kronos_client.redis.url import SentinelUrl, tls_options

ANSWER_TIMEOUT_S = 0.5
"""Of a sentinel, before the next one is asked."""


def _is_demoted(error: ResponseError) -> bool:
    """Whether the server has become a replica. Before Redis 7, a script's error names it in its text."""
    return isinstance(error, ReadOnlyError) or "-READONLY" in str(error)


class PrimaryConnection(Connection):
    """A connection to the primary of the moment. It ends when its server becomes a replica."""

    def __init__(self, *, sentinel: Sentinel, service: str, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._sentinel: Any = sentinel
        self._service = service

    def _connect(self) -> Any:
        self.host, self.port = self._sentinel.discover_master(self._service)
        return super()._connect()  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_response(*args, **kwargs)
        except ResponseError as error:
            if not _is_demoted(error):
                raise
            self.disconnect()  # type: ignore[no-untyped-call]
            raise NoConnection("this Redis is no longer the primary") from error


class PrimarySSLConnection(PrimaryConnection, SSLConnection):
    """The same by TLS."""


class AsyncPrimaryConnection(AsyncConnection):
    """The same for asyncio."""

    def __init__(self, *, sentinel: AsyncSentinel, service: str, **options: Any) -> None:
        super().__init__(**options)
        self._sentinel, self._service = sentinel, service

    async def _connect(self) -> None:
        self.host, self.port = await self._sentinel.discover_master(self._service)
        await super()._connect()  # type: ignore[no-untyped-call]

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().read_response(*args, **kwargs)
        except ResponseError as error:
            if not _is_demoted(error):
                raise
            await self.disconnect(nowait=True)
            raise NoConnection("this Redis is no longer the primary") from error


class AsyncPrimarySSLConnection(AsyncPrimaryConnection, AsyncSSLConnection):
    """The same by TLS."""


def connection_options(url: SentinelUrl, *, is_async: bool = False) -> dict[str, Any]:
    """What a connection to the primary needs: its class, and where the class finds the primary."""
    tls = tls_options(url.url)
    if is_async:
        kind: Any = AsyncPrimarySSLConnection if tls else AsyncPrimaryConnection
        sentinel_kind: Any = AsyncSentinel
        retry: Any = AsyncRetry(NoBackoff(), 0)
    else:
        kind = PrimarySSLConnection if tls else PrimaryConnection
        sentinel_kind, retry = Sentinel, Retry(NoBackoff(), 0)
    sentinel = sentinel_kind(url.addresses, sentinel_kwargs=sentinel_options(url) | {"retry": retry})
    return {"connection_class": kind, "sentinel": sentinel, "service": url.service, **(tls or {})}


def sentinel_options(url: SentinelUrl) -> dict[str, Any]:
    """redis-py's options of connections to the sentinels themselves, which plain Celery takes too."""
    tls = tls_options(url.url)
    return {
        "socket_timeout": ANSWER_TIMEOUT_S,
        "socket_connect_timeout": ANSWER_TIMEOUT_S,
        "credential_provider": url.sentinel_credentials,
        **({} if tls is None else {"ssl": True, **tls}),
    }
