"""The methods that an address takes, over all its routes. Starlette's own answer names those of one route."""

import re
from collections.abc import Sequence

from fastapi import FastAPI
from starlette.routing import Match, Mount, compile_path
from starlette.types import Scope

from api_stub.addresses import address_of, is_of_api


class PageMount(Mount):
    """The mount at ``/``, which leaves every address of the API to its routes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.NONE, {}) if is_of_api(address_of(scope)) else super().matches(scope)


class Methods:
    """The methods of each address of an app."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._patterns: list[tuple[re.Pattern[str], list[str]]] | None = None

    def of(self, scope: Scope) -> Sequence[str]:
        """The methods of a request's address, in capitals and sorted; empty if no route is there."""
        path = address_of(scope)
        if self._patterns is None:
            self._patterns = [
                (compile_path(template)[0], sorted(method.upper() for method in operations))
                for template, operations in self._app.openapi()["paths"].items()
            ]
        return next((methods for pattern, methods in self._patterns if pattern.match(path)), [])
