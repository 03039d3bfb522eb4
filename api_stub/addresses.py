"""Request addresses, without the prefix that the app is served or mounted under."""

from typing import Final

from starlette.routing import Match, Route
from starlette.types import Scope

PROBES: Final = ("/v1/healthz", "/v1/readyz")
DESCRIPTIONS: Final = ("/openapi.json", "/v1/openapi.json")
UPLOADS: Final = ("/v1/datasets", "/v1/candles", "/v1/forecasts/file")
PREDICTIONS: Final = "/v1/predict/"
METRICS: Final = ("/metrics", "/v1/metrics")


async def _never_called() -> None: ...


_ANY: Final = Route("/{path:path}", _never_called)
"""Matching this route gives the address without its prefix. Starlette has no other public way to get it."""


def address_of(scope: Scope) -> str:
    """The address without its prefix, such as ``/v1/workers``; empty if it lies outside the prefix."""
    match, found = _ANY.matches(scope)
    return "" if match == Match.NONE else f"/{found['path_params']['path']}"
