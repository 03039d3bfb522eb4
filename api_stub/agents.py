"""``/mcp``: the tools for agents over HTTP, behind the keys, scopes and limits of the API.

``main`` imports it only if ``KRONOS_API_MCP`` is set. Each request stands alone: there are no sessions.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolResult
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from api_stub.backend import Backend
from api_stub.keys import check_scope, key_of, own_name
from api_stub.problems import HttpCode, HttpError
from api_stub.routes.candles import file_warnings, read_path
from api_stub.uploads.dataset_folder import data_folder, dataset_path, stored_files
from kronos_client.mcp.server import make_server
from kronos_client.mcp.service import MAX_LISTED, READS, AnyContext, FileCandles, Service, answer
from kronos_model.bars.files.options import ReadOptions
from kronos_model.bars.missing import Missing


@asynccontextmanager
async def serving(backend: Backend) -> AsyncIterator[ASGIApp]:
    """What answers requests, as long as the app lives."""
    service = _ApiService(backend)
    server = make_server(service)
    server.tool(**READS)(service.list_files)
    # Not with json_response: then the SDK does not see that a client is gone, and the job would go on. Keys
    # checks the host, and the endpoint the origin.
    server.streamable_http_app(
        stateless_http=True,
        max_request_body_size=backend.settings.api_max_body_bytes,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    async with server.session_manager.run():
        yield server.session_manager.handle_request


class _Endpoint:
    """Passes requests on, but for those of web pages that are neither our own nor in KRONOS_API_CORS_ORIGINS.

    Programs send no Origin. A browser does, and what it calls may be this machine's own address.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, backend = Request(scope), scope["app"].state.backend
        origin = request.headers.get("origin", "")
        ours = ("", *backend.settings.cors_origins)
        if origin not in ours and urlsplit(origin).netloc != request.headers.get("host"):
            text = "pages of this origin may not use the tools: add it to KRONOS_API_CORS_ORIGINS"
            raise HttpError(HttpCode.ORIGIN_NOT_ALLOWED, text, "origin", place="header")
        await scope["app"].state.agents(scope, receive, send)


ROUTE: Final = Route("/mcp", _Endpoint(), methods=["POST"])
"""Only POST: without sessions there is nothing to receive by GET, and nothing to DELETE."""


class _ApiService(Service):
    """The service of an API. Files are read as uploaded ones are, in a process of their own."""

    def __init__(self, backend: Backend) -> None:
        settings, redis = backend.settings, backend.dispatcher.redis
        super().__init__(backend.core, redis, settings.model_folder, settings.api_wait_s)
        self._backend = backend

    def allow(self, context: AnyContext, *scopes: str) -> str:
        request = _request_of(context)
        check_scope(request, *scopes)
        return key_of(request.scope)

    def feed_name(self, context: AnyContext, name: str) -> str:
        return own_name(_request_of(context), name)

    async def candles(self, file: str, instrument: str | None, missing: Missing) -> FileCandles:
        path = await self._backend.call(dataset_path, data_folder(self._backend.settings), file)
        wanted = {"instrument": instrument, "max_bars": self._backend.settings.max_bars}
        content = await read_path(path, file, self._backend, ReadOptions(missing=missing), wanted)
        columns = dict(content["series"])
        warnings = [*file_warnings(content, instrument), *content["bad_rows"]]
        return FileCandles(columns.pop("id"), columns.pop("timezone", None), columns, warnings)

    async def data(self, files: Sequence[str]) -> Sequence[str]:
        for file in files:
            await self._backend.call(dataset_path, data_folder(self._backend.settings), file)
        return files

    async def list_files(self, context: AnyContext) -> CallToolResult:
        """The candle files that forecast_file and run_backtest may name."""
        self.allow(context, "predict", "train")
        found = await self._backend.call(stored_files, data_folder(self._backend.settings))
        return answer({"files": [file.name for file in found[:MAX_LISTED]], "total": len(found)})


def _request_of(context: AnyContext) -> Request:
    request = context.request_context.request
    assert isinstance(request, Request), "the transport is HTTP"
    return request
