"""Which methods an address takes: by all of its routes, of which the framework's own answer names one."""

import re
from collections.abc import Sequence

from fastapi import FastAPI
from starlette.routing import Match, Mount, compile_path
from starlette.types import Scope

from api_stub.addresses import address_of, is_of_api


class PageMount(Mount):
    """What is mounted at / leaves the addresses of the API alone, also where those take another method."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.NONE, {}) if is_of_api(address_of(scope)) else super().matches(scope)


class Methods:
    """The methods of each address of an app."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._patterns: list[tuple[re.Pattern[str], list[str]]] | None = None

    def of(self, scope: Scope) -> Sequence[str]:
        """Those of a request's address, in capitals, sorted; none where nothing is there."""
        path = address_of(scope)
        if self._patterns is None:
            paths = self._app.openapi()["paths"]
            self._patterns = [
                (compile_path(template)[0], sorted(method.upper() for method in operations))
                for template, operations in paths.items()
            ]
        return next((methods for pattern, methods in self._patterns if pattern.match(path)), [])
