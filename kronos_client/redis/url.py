"""What a URL of Redis holds: user and password, and TLS."""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from redis import CredentialProvider

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
