"""Middleware that limits the size of a request's body, and the time for which it may pause."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api_stub.addresses import UPLOADS, address_of
from api_stub.problems import HttpCode, HttpError
from api_stub.settings import ApiSettings


class BodyLimits:
    """Refuses bodies that are too large, by Content-Length or while they arrive, or that stop arriving.

    The rest of such a body is not read, and the connection is closed.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_upload = address_of(scope) in UPLOADS
        limit = self._settings.api_max_upload_bytes if is_upload else self._settings.api_max_body_bytes
        too_large = HttpError(
            HttpCode.BODY_TOO_LARGE,
            f"the body has more than {limit} bytes; split the request",
            details={"limit": limit},
            headers={"Connection": "close"},
        )
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and len(announced) < 20 and int(announced) > limit:
            await too_large.response()(scope, receive, send)
            return
        num_bytes = 0
        pause_s: float | None = self._settings.api_body_timeout_s

        async def limited() -> Message:
            nonlocal num_bytes, pause_s
            try:
                async with asyncio.timeout(pause_s):
                    message = await receive()
            except TimeoutError:
                raise _too_slow(num_bytes, pause_s) from None
            num_bytes += len(message.get("body", b""))
            if num_bytes > limit:
                raise too_large
            if not message.get("more_body"):
                pause_s = None  # what follows is the client's disconnection, at any time
            return message

        await self._app(scope, limited, send)


def _too_slow(num_bytes: int, pause_s: float | None) -> HttpError:
    text = f"no byte of the body came for {pause_s:g} s after the first {num_bytes}; send the request again"
    return HttpError(HttpCode.REQUEST_TIMEOUT, text, headers={"Connection": "close"})
