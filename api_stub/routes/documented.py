"""A request's body: JSON and nothing else, described by a model that somebody else checks it by.

That is the contract's own reader, or ``checked``: megabytes take part of a second, in which the event loop
has others to answer.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from api_stub.problems import HttpCode, HttpError


async def json_only(request: Request) -> None:
    """Refuses a body that does not say it is JSON: pages of other sites may send such ones unasked."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    if request.method == "POST" and not is_json:
        raise HttpError(
            HttpCode.UNSUPPORTED_MEDIA_TYPE, "send JSON, with the header Content-Type: application/json"
        )


LARGE_BYTES: Final = 2**17
"""As JSON takes about a millisecond to read."""

Body = TypeVar("Body", bound=BaseModel)


class _Request(Request):
    """FastAPI's, whose JSON is read on a thread where it is large."""

    async def json(self) -> Any:
        body = await self.body()
        if len(body) < LARGE_BYTES:
            return await super().json()
        return await asyncio.to_thread(json.loads, body)


class LargeBodies(APIRoute):
    """A route whose body may be large."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def handle_large(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handle_large


async def checked(model: type[Body], content: dict[str, Any]) -> Body:
    """A body as FastAPI would check it, but on a thread. Raises RequestValidationError."""
    return await asyncio.to_thread(_checked, model, content)


def _checked(model: type[Body], content: dict[str, Any]) -> Body:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        raise RequestValidationError([one | {"loc": ("body", *one["loc"])} for one in found]) from None


class AsDocumented:
    """Annotates ``dict``: any object passes, described as ``model``, by which it is checked later."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.dict_schema()

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(self._model.__pydantic_core_schema__)
