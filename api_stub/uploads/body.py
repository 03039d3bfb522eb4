"""A body that is a file of candles, and how to read it: the same for every route that takes files."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Query, Request
from pydantic import BaseModel, Field

from api_stub.backend import Backend
from api_stub.keys import key_of
from api_stub.problems import HttpCode, HttpError
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.files.content import SAVE_AS_CSV
from kronos_model.bars.files.find import PARQUET_SUFFIXES, SUFFIXES
from kronos_model.bars.files.options import MAPPED, ReadOptions
from kronos_model.bars.missing import Missing
from kronos_model.errors import CandleFileError

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
_BINARY: Final = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA_TYPES}
_CONTENT: Final = _BINARY | {"text/csv": {"schema": {"type": "string"}}}
FILE_BODY: Final[dict[str, Any]] = {"requestBody": {"required": True, "content": _CONTENT}}
"""For OpenAPI."""


def media_type_of(request: Request) -> str:
    """A body's media type without its parameters, in lower case."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


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
        others += f"; not as a form. {SAVE_AS_CSV}; candles in JSON are for POST /v1/forecasts"
        raise HttpError(HttpCode.UNSUPPORTED_MEDIA_TYPE, f"{text}, {others}")
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


class ReadQuery(BaseModel):
    """``ReadOptions`` as a query. What is empty counts as left out."""

    column: list[str] | None = Field(
        default=None,
        max_length=len(MAPPED),
        description="our name and the file's name of a column, if they differ, such as `close:Adj Close`",
    )
    id_column: str | None = Field(
        default=None, max_length=100, description="column that names the instrument, if the file has several"
    )
    date_format: str | None = Field(
        default=None,
        max_length=100,
        description="form of the times as in Python's strptime, such as `%d/%m/%Y`, where it cannot be found",
    )
    decimal: Literal[".", ","] | None = Field(
        default=None, description="decimal sign of the numbers, where it cannot be found"
    )
    missing: Missing = Field(
        default="error", description="rows without prices: error, ffill (the close before) or drop"
    )
    drop_bad_rows: bool = Field(
        default=False, description="leave unusable rows out and count them; else the first one is an error"
    )
    reject_impossible: bool = Field(
        default=False, description="whether an open or close outside low to high makes a row unusable"
    )


# async, because FastAPI runs sync dependencies on threads.
async def _read_options(given: Annotated[ReadQuery, Query()]) -> ReadOptions:
    options = {name: value for name, value in given if value}
    try:
        return ReadOptions.parse(options.pop("column", []), ":", **options)
    except CandleFileError as error:
        raise JobError(ErrorCode.BAD_VALUE, f"column: {error.message}", "column") from None


ReadOptionsDependency = Annotated[ReadOptions, Depends(_read_options)]
