"""Middleware that limits the requests a minute of each key, over all processes of the API."""

import hashlib
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final

from redis.exceptions import RedisError
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api_stub.addresses import DESCRIPTIONS, PROBES, address_of
from api_stub.backend import Backend
from api_stub.keys import key_of
from api_stub.problems import HttpCode, HttpError
from kronos_client.contract.errors import JobError
from kronos_client.contract.names import KEY_PREFIX
from kronos_client.redis.scripts import read_script

log = logging.getLogger(__name__)

PERIOD_S: Final = 60
SCRIPT: Final = read_script("rate_limit", Path(__file__).parent)
HEADERS: Final = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")


class RateLimit:
    """Refuses requests beyond the limit, and adds the ``RateLimit`` headers to the answers of the others.

    What needs no key does not count. Without keys, all requests count together. If Redis does not
    answer, nothing is refused.
    """

    def __init__(self, app: ASGIApp, limit: int, page: Collection[str]) -> None:
        self._app = app
        self._limit = limit
        self._open = frozenset({*PROBES, *DESCRIPTIONS, *page})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "OPTIONS" or address_of(scope) in self._open:
            await self._app(scope, receive, send)
            return
        backend: Backend = scope["app"].state.backend
        try:
            is_admitted, *left, wait_s = await backend.call(self._ask, backend, key_of(scope))
        except (RedisError, JobError) as error:
            log.warning("the rate limit is not enforced: %s", error)
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in zip(HEADERS, (self._limit, *left), strict=True):
                    headers[name] = str(value)
            await send(message)

        if is_admitted:
            await self._app(scope, receive, send_with_headers)
            return
        text = f"{self._limit} requests a minute are allowed, and more came; send this one in {wait_s} s"
        details = {"limit": self._limit, "retry_after_s": wait_s}
        refusal = HttpError(HttpCode.RATE_LIMITED, text, details=details)
        await refusal.response()(scope, receive, send_with_headers)

    def _ask(self, backend: Backend, key: str) -> list[int]:
        """Run the script. Its key names the API's key by a hash, which reveals nothing. Blocks."""
        name = f"{KEY_PREFIX}rate:{hashlib.sha256(key.encode()).hexdigest()[:32]}"
        answer: list[int] = backend.dispatcher.redis.eval(SCRIPT, 1, name, self._limit, PERIOD_S)
        return answer
