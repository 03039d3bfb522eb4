"""Refuses query parameters that a route does not have: a misspelt one would be ignored without a word."""

from collections.abc import Iterator
from typing import Any, Final

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel

from kronos_client.contract.errors import ErrorCode, JobError

MAX_CHARS: Final = 200


# async, because FastAPI runs sync dependencies on threads.
async def _check(request: Request) -> None:
    """Raises JobError UNKNOWN_FIELD."""
    if not request.query_params:
        return
    route: APIRoute = request.scope["route"]
    known = set(_names(route.dependant))
    if unknown := [name for name in request.query_params if name not in known]:
        has = f"those of this address are {', '.join(sorted(known))}" if known else "this address has none"
        name = unknown[0][:MAX_CHARS]
        raise JobError(ErrorCode.UNKNOWN_FIELD, f"{name!r} is no query parameter: {has}", name)


def _names(dependant: Dependant) -> Iterator[str]:
    for parameter in dependant.query_params:
        annotation: Any = parameter.field_info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from annotation.model_fields
        else:
            yield parameter.alias
    for other in dependant.dependencies:
        yield from _names(other)


KNOWN_QUERY: Final = Depends(_check)
