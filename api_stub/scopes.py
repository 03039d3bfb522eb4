"""The key of a request and its scopes: what it allows. A key without scopes allows everything."""

import hashlib
from typing import Annotated, Any, Final, Literal, get_args

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.types import Scope

from api_stub.problems import HttpCode
from kronos_client.contract.errors import JobError

KeyScope = Literal["predict", "train", "promote", "metrics", "admin"]

SCHEME: Final = "key"
BEARER: Final = HTTPBearer(
    scheme_name=SCHEME, description="a key of KRONOS_API_KEYS, with its scopes", auto_error=False
)
"""For OpenAPI. The middleware Keys reads the header."""

SCOPES: Final[frozenset[KeyScope]] = frozenset(get_args(KeyScope))


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
