"""Middleware that limits the size of a request's body, and how slowly it may arrive."""

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api_stub.addresses import UPLOADS, address_of
from api_stub.problems import HttpCode, HttpError, closing
from api_stub.settings import ApiSettings


class BodyLimits:
    """Refuses bodies that are too large, by Content-Length or while they arrive.

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
        text = f"the body has more than {limit} bytes; split the request"
        too_large = closing(HttpCode.BODY_TOO_LARGE, text, {"limit": limit})
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and len(announced) < 20 and int(announced) > limit:
            await too_large.response()(scope, receive, send)
            return
        num_bytes = 0

        async def limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > limit:
                raise too_large
            return message

        await self._app(scope, limited, send)


class BodyRate:
    """Refuses bodies that stop arriving, or that arrive too slowly.

    Waiting for a body uses up the time that it may pause; the bytes that come give time back. The rest of a
    refused body is not read, and the connection is closed.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._pause_s = settings.api_body_timeout_s
        self._bytes_per_s = settings.api_body_bytes_per_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_bytes = 0
        left_s = self._pause_s
        has_ended = scope["type"] != "http"

        async def timed() -> Message:
            nonlocal num_bytes, left_s, has_ended
            begun_s = time.monotonic()
            try:
                async with asyncio.timeout(None if has_ended else left_s):
                    message = await receive()
            except TimeoutError:
                raise self._too_slow(num_bytes) from None
            num_new = len(message.get("body", b""))
            num_bytes += num_new
            waited_s = time.monotonic() - begun_s
            left_s = min(self._pause_s, left_s + num_new / self._bytes_per_s - waited_s)
            # What follows the body is the client's disconnection, at any time.
            has_ended = has_ended or not message.get("more_body")
            return message

        await self._app(scope, timed, send)

    def _too_slow(self, num_bytes: int) -> HttpError:
        limits = f"pause for {self._pause_s:g} s or bring fewer than {self._bytes_per_s} bytes a second"
        text = f"a body must not {limits}, as this one after {num_bytes} bytes; send the request again"
        return closing(HttpCode.REQUEST_TIMEOUT, text)
