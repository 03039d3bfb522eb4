"""``/mcp``: the tools for agents over HTTP, behind the keys, scopes and limits of the API.

Nothing of it is imported unless ``KRONOS_API_MCP`` is set. Each request stands alone: there are no sessions.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from api_stub.addresses import MCP
from api_stub.backend import Backend
from api_stub.problems import HttpCode, HttpError
from api_stub.settings import ApiSettings
from kronos_client.settings import SettingsError

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager


def mount(app: FastAPI, settings: ApiSettings) -> None:
    """Add the address to the app. Raises SettingsError if the package is missing."""
    if find_spec("mcp") is None:
        raise SettingsError('KRONOS_API_MCP needs the package mcp: pip install "kronos-worker[api,mcp]"')
    # Only POST: without sessions there is nothing to receive by GET, and nothing to DELETE.
    app.router.routes.append(Route(MCP, _Endpoint(settings), methods=["POST"]))


@asynccontextmanager
async def serving(backend: Backend) -> AsyncIterator["StreamableHTTPSessionManager"]:
    """What answers requests, as long as the app lives."""
    from mcp.server.transport_security import TransportSecuritySettings

    from api_stub.agents.service import ApiService
    from kronos_client.mcp.server import make_server

    server = make_server(ApiService(backend))
    # Not with json_response: then the SDK does not see that a client is gone, and the job would go on.
    server.streamable_http_app(
        stateless_http=True,
        max_request_body_size=backend.settings.api_max_body_bytes,
        # Keys checks the host, and the endpoint the origin.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    async with server.session_manager.run():
        yield server.session_manager


class _Endpoint:
    """Passes requests on, but for those of a web page that is neither our own nor of KRONOS_API_CORS_ORIGINS.

    Programs send no Origin. A browser does, and what it calls may be this machine's own address.
    """

    def __init__(self, settings: ApiSettings) -> None:
        self._origins = settings.cors_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if (
            origin is not None
            and origin not in self._origins
            and urlsplit(origin).netloc != headers.get("host")
        ):
            text = "pages of this origin may not use the tools: add it to KRONOS_API_CORS_ORIGINS"
            raise HttpError(HttpCode.ORIGIN_NOT_ALLOWED, text, "origin", place="header")
        manager: StreamableHTTPSessionManager = scope["app"].state.agents
        await manager.handle_request(scope, receive, send)
