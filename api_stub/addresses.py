"""Addresses without the prefix that the app is served or mounted under, as routing sees them, and with it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

from fastapi import Depends, Request
from starlette.routing import Match, Route
from starlette.types import Scope

PROBES: Final = ("/v1/healthz", "/v1/readyz")
UPLOADS: Final = "/v1/datasets"
METRICS: Final = ("/metrics", "/v1/metrics")


async def _nothing() -> None:
    """Is never called."""


_ANY: Final = Route("/{path:path}", _nothing)
"""Its match is the address that other routes match: Starlette has no other public name for it."""


def address_of(scope: Scope) -> str:
    """Such as ``/v1/workers``; empty where routing finds nothing."""
    match, found = _ANY.matches(scope)
    return "" if match == Match.NONE else f"/{found['path_params']['path']}"


# async, since FastAPI runs other dependencies on threads of its own.
async def _mount(request: Request) -> str:
    prefix: str = request.scope.get("root_path", "")
    return prefix.rstrip("/")


Mount = Annotated[str, Depends(_mount)]
"""What addresses that are told begin with: the prefix, such as ``/kronos``, or nothing."""


def is_of_api(address: str) -> bool:
    """Whether it is one of the API's, also where nothing is."""
    return address in ("/v1", "/metrics") or address.startswith("/v1/")


def page_addresses(folder: Path) -> frozenset[str]:
    """Of the page's own files; none where there is no page."""
    if not (folder / "index.html").is_file():
        return frozenset()
    return frozenset({"/", *_files(folder)})


def _files(folder: Path) -> Iterable[str]:
    return (f"/{path.relative_to(folder).as_posix()}" for path in folder.rglob("*") if path.is_file())
