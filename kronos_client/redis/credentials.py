"""User and password of Redis. Each new connection asks for them, so that a new password needs no restart."""

import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

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
