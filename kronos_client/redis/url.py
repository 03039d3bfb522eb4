"""What a URL of Redis holds: user and password, TLS, and sentinels."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from redis import CredentialProvider

URL_FILE: Final = "KRONOS_REDIS_URL_FILE"


class UrlCredentials(CredentialProvider):
    """User and password of a URL, or of the file in ``KRONOS_REDIS_URL_FILE`` if it names the same server.

    Args:
        of_sentinels: Those of the sentinels, in the query, instead of the server's.
    """

    def __init__(self, url: str, *, of_sentinels: bool = False) -> None:
        self._parts, self._of_sentinels = urlsplit(url), of_sentinels

    def get_credentials(self) -> Any:
        """A tuple of user and password, as far as given. redis-py calls it for each connection."""
        in_file = _in_file()
        parts = in_file if in_file and _place(in_file) == _place(self._parts) else self._parts
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if self._of_sentinels:
            query = dict(parse_qsl(parts.query))
            user, password = query.get("sentinel_user", ""), query.get("sentinel_password", "")
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
    if not parts.scheme.startswith(("redis", SENTINEL_SCHEME)):
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


SENTINEL_SCHEME: Final = "sentinel"
SENTINEL_PORT: Final = 26379
SENTINEL_PARAMETERS: Final = ("master", "tls", "sentinel_user", "sentinel_password")
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
    of_sentinels = SENTINEL_PARAMETERS if parts.scheme == SENTINEL_SCHEME else ()
    known = (VERIFY, *TLS_FILES, *of_sentinels)
    if unknown := query.keys() - known:  # kombu ignores most others
        text = f"a URL takes no {min(unknown)} after ?, only {', '.join(known)}"
        raise TlsError(f"{text}: remove or correct it")
    if not has_tls(url):
        if given or query.keys() - of_sentinels:
            remedy = "add tls=true after ?" if of_sentinels else "write rediss://"
            raise TlsError(f"files for TLS are set, but the URL is without TLS: {remedy}")
        return url
    if query.setdefault(VERIFY, "required") not in VERIFICATIONS:
        raise TlsError(f"{VERIFY} in the URL must be required or none")
    for name, path in given.items():
        if query.setdefault(name, path) != path:
            raise TlsError(f"{name} in the URL and its setting name different files: remove one of them")
    _check_files(*(query.get(name) for name in TLS_FILES))
    return parts._replace(query=urlencode(query, quote_via=quote, safe="/")).geturl()


def has_tls(url: str) -> bool:
    """Whether connections use TLS."""
    parts = urlsplit(url)
    return parts.scheme == TLS_SCHEME or dict(parse_qsl(parts.query)).get("tls") == "true"


def tls_options(url: str) -> dict[str, Any] | None:
    """The URL's TLS options as Flower reads them (Celery's ``broker_use_ssl``); None without TLS."""
    if not has_tls(url):
        return None
    query = dict(parse_qsl(urlsplit(url).query))
    options: dict[str, Any] = {name: query[name] for name in TLS_FILES if name in query}
    return options | {VERIFY: VERIFICATIONS[query.get(VERIFY, "required")]}


@dataclass(frozen=True)
class SentinelUrl:
    """``sentinel://user:password@host1:26379,host2:26379/0?master=mymaster``, as it was written.

    Attributes:
        addresses: Host and port of each sentinel.
        service: The name by which the sentinels know the primary.
        database: Number of the database.
    """

    url: str = field(repr=False)
    addresses: tuple[tuple[str, int], ...]
    service: str
    database: int

    @classmethod
    def from_url(cls, url: str) -> Self | None:
        """None if the URL is of another kind. Raises ``ValueError``."""
        parts = urlsplit(url)
        if parts.scheme != SENTINEL_SCHEME:
            return None
        query = dict(parse_qsl(parts.query))
        places = [urlsplit(f"//{place}") for place in parts.netloc.rpartition("@")[2].split(",")]
        addresses = tuple((place.hostname or "", place.port or SENTINEL_PORT) for place in places)
        if not all(host for host, _ in addresses) or "master" not in query:
            raise ValueError("a host or the master's name is missing")
        if query.get("tls", "false") not in ("true", "false"):
            raise ValueError("tls is neither true nor false")
        return cls(url, addresses, query["master"], int(parts.path.removeprefix("/") or 0))

    @property
    def sentinel_credentials(self) -> UrlCredentials:
        """For the sentinels themselves."""
        return UrlCredentials(self.url, of_sentinels=True)

    def celery_url(self) -> str:
        """The URL as Celery writes it; the rest is in its options."""
        user_info, at, _ = urlsplit(self.url).netloc.rpartition("@")
        places = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses)
        return ";".join(f"{SENTINEL_SCHEME}://{user_info}{at}{place}/{self.database}" for place in places)


def place_of(url: str) -> str:
    """Where the server is, for people: no user and no password."""
    if (sentinel := SentinelUrl.from_url(url)) is None:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port or 6379}"
    places = ", ".join(f"{host}:{port}" for host, port in sentinel.addresses)
    return f"the primary of {sentinel.service} (sentinels {places})"


def hosts_of(url: str) -> list[str]:
    """The servers that the URL names."""
    sentinel = SentinelUrl.from_url(url)
    return [urlsplit(url).hostname or ""] if sentinel is None else [host for host, _ in sentinel.addresses]


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
