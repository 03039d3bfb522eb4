"""A request's body that is a file of candles, not a form."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import Request

from api_stub.backend import Backend
from api_stub.problems import HttpCode, HttpError
from api_stub.routes.documented import media_type_of
from api_stub.routes.scopes import key_of
from kronos_model.bars.files.find import PARQUET_SUFFIXES, SUFFIXES

MAX_UPLOADS: Final = 8
MAX_UPLOADS_OF_ONE: Final = 4
"""Uploads under way of one key, or without keys from one address."""
MEDIA_TYPES: Final = {
    "text/csv": (".csv",),
    "application/gzip": (".gz",),
    "application/vnd.apache.parquet": PARQUET_SUFFIXES,
    "application/octet-stream": SUFFIXES,
}
"""Allowed content types. Unlike forms, these need a preflight from pages of other sites."""
_CONTENT: Final = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA_TYPES}
FILE_BODY: Final[dict[str, Any]] = {"requestBody": {"required": True, "content": _CONTENT}}
"""For OpenAPI."""


@asynccontextmanager
async def receiving(request: Request, backend: Backend, name: str) -> AsyncIterator[AsyncIterator[bytes]]:
    """The body in parts, while this upload is one of those that may be under way.

    Raises:
        HttpError: UNSUPPORTED_MEDIA_TYPE, OVERLOADED, RATE_LIMITED.
    """
    if not name.endswith(MEDIA_TYPES.get(media_type_of(request), ())):
        text = (
            "the Content-Type does not fit the file: send a .csv as text/csv, a .csv.gz as application/gzip"
        )
        others = "a .parquet or .pq as application/vnd.apache.parquet, or any as application/octet-stream"
        raise HttpError(HttpCode.UNSUPPORTED_MEDIA_TYPE, f"{text}, {others}; not as a form")
    sender = key_of(request.scope) or (request.client.host if request.client else "")
    if backend.uploads[sender] >= MAX_UPLOADS_OF_ONE:
        text = f"{MAX_UPLOADS_OF_ONE} of your uploads are under way; send the file when one is done"
        raise HttpError(HttpCode.RATE_LIMITED, text, details={"limit": MAX_UPLOADS_OF_ONE})
    if backend.uploads.total() >= MAX_UPLOADS:
        raise HttpError(HttpCode.OVERLOADED, "too many uploads are under way; send the file again soon")
    backend.uploads[sender] += 1
    try:
        yield request.stream()
    finally:
        backend.uploads[sender] -= 1
        backend.uploads += Counter()  # forgets senders without uploads
