"""The app: ``create_app`` puts it together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from api_stub import problems
from api_stub.addresses import page_addresses
from api_stub.backend import Backend
from api_stub.description import describe, problem_response
from api_stub.middleware.guards import BodyLimit, Keys, read_keys
from api_stub.middleware.methods import Methods, PageMount
from api_stub.middleware.request_log import RequestLog
from api_stub.page_files import PageFiles
from api_stub.routes import datasets, finetunes, forecasts, health, metrics, models, predict, workers
from api_stub.settings import ApiSettings
from kronos_client.contract.errors import JobError

PAGE: Final = Path(__file__).parent / "page"
VERSION: Final = "1"
PARTS: Final = (predict, forecasts, finetunes, models, datasets, workers, health, metrics)
EXPOSED_HEADERS: Final = ("X-Job-Id", "X-Request-Id", "Location", "Retry-After")


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": problem_response("what was sent, with its code and field", example=problems.example_problem()),
    "5XX": problem_response("what the service cannot do now, with its code"),
}


def create_app(settings: ApiSettings) -> FastAPI:
    """An app for these settings. It connects when it is started, and not before.

    Raises SettingsError where it would be open to whoever reaches it.
    """
    keys = read_keys(settings)
    known = metrics.HttpMetrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Backend(settings) as backend:
            app.state.backend = backend
            yield

    app = FastAPI(
        title="Kronos",
        version=VERSION,
        summary="Candlestick forecasts as jobs",
        lifespan=lifespan,
        # Their pages load what they show from other hosts.
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        generate_unique_id_function=_operation_id,
        responses=PROBLEMS,
        # What is mounted at / answers for addresses that end otherwise.
        redirect_slashes=False,
    )
    describe(app, needs_keys=bool(keys))
    app.state.metrics = known
    app.state.methods = Methods(app)
    app.add_exception_handler(JobError, problems.on_job_error)
    app.add_exception_handler(problems.JobFailure, problems.on_job_failure)
    app.add_exception_handler(HTTPException, problems.on_http_error)
    app.add_exception_handler(RequestValidationError, problems.on_validation_error)
    for part in PARTS:
        app.include_router(part.router)
    page = page_addresses(PAGE)
    if page:
        app.router.routes.append(PageMount("/", PageFiles(directory=PAGE, html=True), name="page"))
    # The last one added is the first to see a request.
    app.add_middleware(
        BodyLimit, max_bytes=settings.api_max_body_bytes, max_upload_bytes=settings.api_max_upload_bytes
    )
    app.add_middleware(Keys, keys=keys, page=page)
    if origins := _origins(settings):
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "X-Request-Id"],
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(RequestLog, metrics=known)
    return app


def _operation_id(route: APIRoute) -> str:
    """Short, for clients that are generated from the description."""
    return f"{route.tags[0] if route.tags else 'api'}_{route.name}"


def _origins(settings: ApiSettings) -> list[str]:
    return [origin.strip() for origin in (settings.api_cors_origins or "").split(",") if origin.strip()]
