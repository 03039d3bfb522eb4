"""``create_app`` builds the FastAPI app."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from importlib import import_module
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.routing import Route

from api_stub import page_files, problems
from api_stub.addresses import DESCRIPTIONS
from api_stub.backend import Backend
from api_stub.description import ABOUT, describe
from api_stub.keys import read_keys
from api_stub.middleware.authentication import Keys
from api_stub.middleware.body_limits import BodyLimits, BodyRate
from api_stub.middleware.encodings import Decoding, Encoding
from api_stub.middleware.head import Head
from api_stub.middleware.rate_limit import HEADERS, RateLimit
from api_stub.middleware.request_log import RequestLog
from api_stub.routes import (
    backtest_reports,
    candles,
    datasets,
    explanations,
    feeds,
    file_forecasts,
    health,
    jobs,
    metrics,
    models,
    predict,
    promotions,
    workers,
)
from api_stub.routes.query import KNOWN_QUERY
from api_stub.settings import ApiSettings
from api_stub.webhooks.address import read_networks
from api_stub.webhooks.sender import Webhooks, read_secret
from kronos_client.contract.errors import JobError
from kronos_client.settings import SettingsError

PARTS: Final = (
    predict,
    file_forecasts,
    jobs,
    backtest_reports,
    feeds,
    explanations,
    promotions,
    models,
    candles,
    datasets,
    workers,
    health,
    metrics,
    page_files,
)


def create_app(settings: ApiSettings) -> FastAPI:
    """Build the app for these settings. It connects to Redis when it starts.

    Raises:
        SettingsError: the keys or the settings of webhooks cannot be used, or the address needs keys and
            there are none.
    """
    keys = read_keys(settings)
    secret, networks = read_secret(settings.webhook_secret), read_networks(settings.webhook_networks)
    agents = _agents() if settings.api_mcp else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Backend(settings) as backend, Webhooks(backend, secret, networks) as webhooks:
            app.state.backend, app.state.webhooks = backend, webhooks
            tools = nullcontext() if agents is None else agents.serving(backend)
            async with tools as app.state.agents:
                yield

    app = FastAPI(
        **ABOUT,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's documentation pages load scripts from other hosts
        redoc_url=None,
        openapi_url=DESCRIPTIONS[0],
        generate_unique_id_function=lambda route: route.name,  # names the methods of generated clients
        responses={422: {}},  # else FastAPI describes its own
        redirect_slashes=False,  # the page is mounted at / and answers for the other address
    )
    describe(app, needs_keys=bool(keys))
    (description,) = [route for route in app.routes if isinstance(route, Route)]
    app.add_route(DESCRIPTIONS[1], description.endpoint, include_in_schema=False)
    app.state.metrics = metrics.HttpMetrics()
    app.add_exception_handler(JobError, problems.on_job_error)
    app.add_exception_handler(HTTPException, problems.on_http_error)
    app.add_exception_handler(RequestValidationError, problems.on_validation_error)
    for part in PARTS:
        is_open = part in (metrics, page_files)  # scrapers and links may add their own
        app.include_router(part.router, dependencies=[] if is_open else [KNOWN_QUERY])
    if agents is not None:
        app.router.routes.append(agents.ROUTE)
    # The middleware added last receives a request first.
    app.add_middleware(Head)
    app.add_middleware(Encoding)
    app.add_middleware(BodyLimits, settings=settings)
    app.add_middleware(Decoding)  # outside of BodyLimits, which counts decoded bytes
    app.add_middleware(BodyRate, settings=settings)
    if settings.api_requests_per_minute is not None:
        app.add_middleware(RateLimit, limit=settings.api_requests_per_minute, page=page_files.ADDRESSES)
    app.add_middleware(Keys, keys=keys, page=page_files.ADDRESSES)
    if origins := settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=[
                *("Authorization", "Content-Encoding", "Content-Type", "Idempotency-Key", "Prefer"),
                "X-Request-Id",
            ],
            expose_headers=[
                *("Location", "Preference-Applied", "Retry-After", "X-Job-Id", "X-Request-Id"),
                *HEADERS,
            ],
        )
    app.add_middleware(RequestLog, metrics=app.state.metrics)
    return app


def _agents() -> Any:
    """The module of tools for agents. Raises SettingsError without its package."""
    try:
        return import_module("api_stub.agents")
    except ModuleNotFoundError as error:
        text = f'KRONOS_API_MCP needs the package {error.name}: pip install "kronos-worker[api,mcp]"'
        raise SettingsError(text) from None
