"""Middleware that checks keys and host names before the app handles a request."""

import hmac
import re
from collections.abc import Collection, Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api_stub.addresses import DESCRIPTIONS, PROBES, address_of
from api_stub.keys import KeyScope, is_local
from api_stub.problems import HttpCode, HttpError

_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9a-f:]+)\]|(?P<name>[^:\[\]]+))(?::\d+)?", re.IGNORECASE)


class Keys:
    """Admits requests that send a key as ``Authorization: Bearer KEY``, and notes the key and what it allows.

    The probes, the page's files and the API's description need no key. If there are no keys at all, only this
    machine is served, and only under its local names. A web page can point its own name at this machine; that
    name is refused.
    """

    def __init__(
        self, app: ASGIApp, keys: Mapping[bytes, frozenset[KeyScope]], page: Collection[str]
    ) -> None:
        self._app = app
        self._keys = keys
        self._open = frozenset({*PROBES, *DESCRIPTIONS, *page})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refuse(scope)
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refuse(self, scope: Scope) -> HttpError | None:
        if not self._keys:
            return _refuse_others(scope)
        # A browser's preflight request carries no key.
        if address_of(scope) in self._open or scope["method"] == "OPTIONS":
            return None
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        secret = given.strip().encode("latin-1", "replace")
        # Compare all keys, so that the time taken does not reveal which one was close.
        matches = [key for key in self._keys if hmac.compare_digest(secret, key)]
        if scheme.lower() == "bearer" and matches:
            (key,) = matches
            scope.setdefault("state", {}).update(key=key.decode(), scopes=self._keys[key])
            return None
        return HttpError(
            HttpCode.UNAUTHORIZED,
            "a key is missing or wrong: send one of KRONOS_API_KEYS as `Authorization: Bearer KEY`",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _refuse_others(scope: Scope) -> HttpError | None:
    server = scope.get("server")
    # Another command may serve the app on another address. A Unix socket has no port and is local.
    is_reachable = server is not None and server[1] is not None and not is_local(server[0])
    match = _HOST.fullmatch(Headers(scope=scope).get("host", "localhost"))
    name = None if match is None else (match["v6"] or match["name"])
    if not is_reachable and name is not None and is_local(name.lower()):
        return None
    return HttpError(
        HttpCode.HOST_NOT_ALLOWED,
        "this host is not served without keys: use localhost or 127.0.0.1, or set KRONOS_API_KEYS",
    )
