"""The keys that the service accepts, and their scopes: what each allows. Without scopes, everything."""

import hashlib
import ipaddress
from typing import Annotated, Any, Final, Literal, get_args

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.types import Scope

from api_stub.problems import HttpCode
from api_stub.settings import ApiSettings
from kronos_client.contract.errors import JobError
from kronos_client.settings import SettingsError

KeyScope = Literal["predict", "train", "promote", "metrics", "admin"]

MIN_KEY_CHARS: Final = 16
SCHEME: Final = "key"
BEARER: Final = HTTPBearer(
    scheme_name=SCHEME, description="a key of KRONOS_API_KEYS, with its scopes", auto_error=False
)
"""For OpenAPI. The middleware Keys reads the header."""

SCOPES: Final[frozenset[KeyScope]] = frozenset(get_args(KeyScope))


def is_local(host: str) -> bool:
    """Whether an address is a loopback address, which no other machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_keys(settings: ApiSettings) -> dict[bytes, frozenset[KeyScope]]:
    """The keys in ``KRONOS_API_KEYS`` with their scopes: ``KEY:predict+train``; without any, all.

    Raises:
        SettingsError: a key is too short or does not fit a header, a scope is unknown, or other machines can
            reach the address and there are no keys.
    """
    text = "" if settings.api_keys is None else settings.api_keys.get_secret_value()
    entries = [entry.partition(":") for entry in text.replace(",", " ").split()]
    keys = [key for key, _, _ in entries]
    if settings.api_keys is not None and not keys:
        raise SettingsError("KRONOS_API_KEYS cannot be used: it contains no key. Add one, or unset it")
    if any(len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable() for key in keys):
        raise SettingsError(
            f"KRONOS_API_KEYS cannot be used: a key needs {MIN_KEY_CHARS} or more ASCII characters. "
            "`openssl rand -hex 32` makes one"
        )
    if not keys and not is_local(settings.api_host):
        raise SettingsError(
            f"KRONOS_API_HOST={settings.api_host} can be reached from other machines: set KRONOS_API_KEYS "
            "or KRONOS_API_KEYS_FILE to the keys that requests must send"
        )
    scopes: list[frozenset[Any]] = [
        frozenset(named.split("+")) if colon else SCOPES for _, colon, named in entries
    ]
    if not all(found <= SCOPES for found in scopes):
        raise SettingsError(
            "KRONOS_API_KEYS cannot be used: after a key and `:` write its scopes, joined by `+`; they are "
            + ", ".join(sorted(SCOPES))
        )
    return {key.encode(): found for key, found in zip(keys, scopes, strict=True)}


def key_of(scope: Scope) -> str:
    """The key that the middleware Keys found valid, however its header was written; empty without keys."""
    key: str = scope.get("state", {}).get("key", "")
    return key


def own_name(request: Request, name: str) -> str:
    """The name in Redis of a feed of this request's key; the name itself without keys, or with admin."""
    key = key_of(request.scope)
    is_open = not key or has_admin(request)
    return name if is_open else f"{hashlib.sha256(key.encode()).hexdigest()[:16]}/{name}"


def needs(*scopes: KeyScope) -> Any:
    """A route's dependency: refuses a key that has neither one of these scopes nor admin."""

    # async, because FastAPI runs sync dependencies on threads.
    async def check(request: Request, _: Annotated[object, Security(BEARER, scopes=scopes)]) -> None:
        check_scope(request, *scopes)

    return Depends(check)


def has_admin(request: Request) -> bool:
    """Whether the request's key allows everything."""
    return "admin" in getattr(request.state, "scopes", SCOPES)


def check_scope(request: Request, *scopes: str) -> None:
    """Raises JobError FORBIDDEN if the request's key has neither one of these scopes, if any, nor admin."""
    granted = getattr(request.state, "scopes", SCOPES)  # the middleware Keys sets them
    if scopes and not granted & {*scopes, "admin"}:
        scope = " or ".join(scopes)
        message = f"this key lacks the scope {scope}: use another, or add it to the key in KRONOS_API_KEYS"
        raise JobError(HttpCode.FORBIDDEN, message, None, {"scope": scope})
