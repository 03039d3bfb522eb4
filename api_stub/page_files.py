"""The web page's files, with headers that forbid it to load or run anything else."""

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
    # Files change with a release. Until then their ETags save the browser the download.
    "Cache-Control": "no-cache",
}


class PageFiles(StaticFiles):
    """Static files with ``HEADERS`` on each."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """Starlette's response, with ``HEADERS``."""
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response
