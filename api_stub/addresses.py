"""Request addresses, with and without the prefix that the app is served or mounted under."""

from pathlib import Path
from typing import Annotated, Final

from fastapi import Depends, Request
from starlette.routing import Match, Route
from starlette.types import Scope

PROBES: Final = ("/v1/healthz", "/v1/readyz")
UPLOADS: Final = "/v1/datasets"
METRICS: Final = ("/metrics", "/v1/metrics")


async def _never_called() -> None: ...


_ANY: Final = Route("/{path:path}", _never_called)
"""Matching this route gives the address without its prefix. Starlette has no other public way to get it."""


def address_of(scope: Scope) -> str:
    """The address without its prefix, such as ``/v1/workers``; empty if it lies outside the prefix."""
    match, found = _ANY.matches(scope)
    return "" if match == Match.NONE else f"/{found['path_params']['path']}"


# async, because FastAPI runs sync dependencies on threads.
async def _mount(request: Request) -> str:
    prefix: str = request.scope.get("root_path", "")
    return prefix.rstrip("/")


Mount = Annotated[str, Depends(_mount)]
"""The prefix of every address in an answer, such as ``/kronos``, or an empty string."""


def is_of_api(address: str) -> bool:
    """Whether an address belongs to the API, even if no route is there."""
    return address in ("/v1", "/metrics") or address.startswith("/v1/")


def page_addresses(folder: Path) -> frozenset[str]:
    """The addresses of the page's files; empty if there is no page."""
    if not (folder / "index.html").is_file():
        return frozenset()
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return frozenset({"/", *(f"/{file}" for file in files)})
