"""The web page's files, with headers that let it load and run nothing but them."""

from typing import Any, Final

from fastapi.staticfiles import StaticFiles
from starlette.responses import Response

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # They change with a release; until then their ETags spare the browser the bodies.
    "Cache-Control": "no-cache",
}


class PageFiles(StaticFiles):
    """Starlette's, with these headers on every file."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """As Starlette's."""
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response
