"""Query parameters: pages of lists, and the refusal of parameters that a route does not have."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.checkpoints.names import did_you_mean

MAX_LIMIT: Final = 1000

Item = TypeVar("Item")

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="most items of one page")]
Cursor = Annotated[
    str | None, Query(max_length=1000, description="`next` of the page before; the first page if left out")
]
NEXT: Final = "cursor of the next page; null on the last one"
MAX_SHOWN_CHARS: Final = 200


def page_of(
    items: Sequence[Item], name_of: Callable[[Item], str], limit: int, cursor: str | None
) -> tuple[list[Item], str | None]:
    """The page that begins at the item named ``cursor``, and the name of the first one after it.

    Raises JobError BAD_VALUE if no item has that name.
    """
    names = [name_of(item) for item in items]
    if cursor is not None and cursor not in names:
        raise JobError(
            ErrorCode.BAD_VALUE, "cursor: the list has changed; begin again with its first page", "cursor"
        )
    start = 0 if cursor is None else names.index(cursor)
    end = start + limit
    return list(items[start:end]), names[end] if end < len(names) else None


# async, because FastAPI runs sync dependencies on threads.
async def _check(request: Request) -> None:
    """Raises JobError UNKNOWN_FIELD."""
    if not request.query_params:
        return
    route: APIRoute = request.scope["route"]
    known = set(_names(route.dependant))
    if unknown := [name for name in request.query_params if name not in known]:
        has = f"those of this address are {', '.join(sorted(known))}" if known else "this address has none"
        name = unknown[0][:MAX_SHOWN_CHARS]
        text = f"{name!r} is no query parameter: {has}{did_you_mean(name, known)}"
        raise JobError(ErrorCode.UNKNOWN_FIELD, text, name)


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
