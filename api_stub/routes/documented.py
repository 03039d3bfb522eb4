"""JSON request bodies: described by a model, but read and checked off the event loop.

Reading megabytes takes a large part of a second, in which the event loop must answer other requests.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from api_stub.problems import HttpCode, HttpError
from api_stub.uploads.body import media_type_of


async def json_only(request: Request) -> None:
    """Refuse a body not declared as JSON: a page of another site could send it without a preflight."""
    if request.method == "POST" and not re.fullmatch(r"application/(.*\+)?json", media_type_of(request)):
        message = "the body is not declared as JSON: send JSON with the header Content-Type: application/json"
        raise HttpError(HttpCode.UNSUPPORTED_MEDIA_TYPE, message)


LARGE_BYTES: Final = 2**17
"""JSON of this size takes about a millisecond to read."""

Body = TypeVar("Body", bound=BaseModel)


class _Request(Request):
    """A request that reads large JSON on a thread."""

    async def json(self) -> Any:
        body = await self.body()
        if len(body) < LARGE_BYTES:
            return await super().json()
        return await asyncio.to_thread(json.loads, body)


class LargeBodies(APIRoute):
    """A route that reads large JSON bodies on a thread."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def handle_large(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handle_large


async def checked(model: type[Body], content: dict[str, Any]) -> Body:
    """Check a body as FastAPI would, but on a thread. Raises RequestValidationError."""
    try:
        return await asyncio.to_thread(model.model_validate, content)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        raise RequestValidationError(
            [problem | {"loc": ("body", *problem["loc"])} for problem in found]
        ) from None


@dataclass(frozen=True)
class AsDocumented:
    """Annotates a ``dict`` body: any object passes now; OpenAPI describes it as ``model``."""

    model: type[BaseModel]

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(self.model.__pydantic_core_schema__)
