"""Files of candles for finetuning. An upload is stored complete and readable, or not at all."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator, BaseModel, Field

from api_stub.backend import BackendDependency
from api_stub.problems import HttpCode, HttpError
from api_stub.routes.documented import media_type_of
from api_stub.routes.paging import MAX_LIMIT, NEXT, Cursor, Limit, page_of
from api_stub.routes.scopes import needs
from api_stub.uploads.dataset_folder import (
    DATASET_NAME,
    StoredFile,
    data_folder,
    remove,
    store,
    stored_files,
)
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.columns import COLUMNS

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

MEDIA_TYPES: Final = {
    "text/csv": (".csv",),
    "application/vnd.apache.parquet": (".parquet", ".pq"),
    "application/octet-stream": (".csv", ".parquet", ".pq"),
}
"""Allowed content types. Unlike forms, these need a preflight from pages of other sites."""
BINARY: Final = {"schema": {"type": "string", "format": "binary"}}


def _checked_name(given: str) -> str:
    """The name with its suffix in lower case, as finetuning expects it."""
    stem, dot, suffix = given.rpartition(".")
    name = f"{stem}{dot}{suffix.lower()}"
    if not DATASET_NAME.fullmatch(name):
        raise ValueError(
            "the name must start with a letter or digit, have up to 99 more letters, digits, `.`, `_` or "
            "`-`, and end in .csv, .parquet or .pq; it cannot contain folders"
        )
    return name


Name = Annotated[
    str,
    AfterValidator(_checked_name),
    Query(
        description="file name for data.path in jobs; its suffix sets the format and becomes lower case",
        examples=["AAPL-5min.csv"],
    ),
]
InstrumentColumn = Annotated[
    str | None, Query(max_length=100, description="column that names the instrument, if the file has several")
]
MappedColumns = Annotated[
    list[str] | None,
    Query(
        alias="column",
        max_length=len(COLUMNS) + 1,
        description="our name and the file's name of a column, if they differ, such as `close:Adj Close`",
    ),
]


class InstrumentSummary(BaseModel):
    """One instrument of a file."""

    name: str
    num_bars: int
    first: str | None
    last: str | None
    spacing_s: int | None


class DatasetReport(BaseModel):
    """A stored file, and what finetuning would read in it."""

    name: str = Field(description="for `data.path` in a finetuning job")
    num_bytes: int
    is_replaced: bool = Field(description="whether it replaced a file of that name")
    num_instruments: int
    num_bars: int
    num_gaps: int = Field(description="bars missing within a day")
    dropped: dict[str, int] = Field(description="number of unusable rows, by reason")
    instruments: list[InstrumentSummary] = Field(description="the first instruments")


class DatasetsView(BaseModel):
    """The files in the data folder."""

    datasets: list[StoredFile]
    next: str | None = Field(description=NEXT)


@router.get("")
async def datasets(
    backend: BackendDependency, limit: Limit = MAX_LIMIT, cursor: Cursor = None
) -> DatasetsView:
    """The files that finetuning jobs may name, including those in subfolders."""
    files = await backend.call(stored_files, data_folder(backend.settings))
    page, following = page_of(files, lambda file: file.name, limit, cursor)
    return DatasetsView(datasets=page, next=following)


@router.delete("/{name:path}", status_code=204, dependencies=[needs("admin")])
async def delete(
    name: Annotated[str, Path(max_length=1000, description="of a file in the list")],
    backend: BackendDependency,
) -> None:
    """Delete a file. A finetuning job that has not read it yet fails."""
    await backend.call(remove, data_folder(backend.settings), name)


@router.post(
    "",
    dependencies=[needs("train")],
    status_code=201,
    response_model=DatasetReport,
    openapi_extra={"requestBody": {"required": True, "content": dict.fromkeys(MEDIA_TYPES, BINARY)}},
)
async def upload(
    request: Request,
    backend: BackendDependency,
    name: Name,
    replace: Annotated[bool, Query(description="whether to replace a file of that name")] = False,
    instrument_column: InstrumentColumn = None,
    column: MappedColumns = None,
) -> dict[str, Any]:
    """Store the body, one CSV or Parquet file. Jobs can use it once it has been read and checked."""
    if not name.endswith(MEDIA_TYPES.get(media_type_of(request), ())):
        raise HttpError(
            HttpCode.UNSUPPORTED_MEDIA_TYPE,
            "the Content-Type does not fit the file: send a .csv as text/csv, a .parquet or .pq as "
            "application/vnd.apache.parquet, or any as application/octet-stream; not as a form",
        )
    config = {"instrument_column": instrument_column, "columns": _columns(column)}
    folder = data_folder(backend.settings)
    if backend.uploads.locked():
        raise HttpError(HttpCode.OVERLOADED, "too many uploads are under way; send the file again soon")
    async with backend.uploads:
        body, reading = request.stream(), backend.reading_datasets
        return await store(folder, name, body, config, may_replace=replace, reading=reading)


def _columns(mapped: list[str] | None) -> dict[str, str]:
    columns: dict[str, str] = {}
    for entry in mapped or []:
        own, _, theirs = entry.partition(":")
        if own not in ("timestamps", *COLUMNS) or not theirs or own in columns:
            names = f"timestamps, {', '.join(COLUMNS)}"
            message = f"column: send each of {names} at most once, as NAME:COLUMN IN THE FILE"
            raise JobError(ErrorCode.BAD_VALUE, message, "column")
        columns[own] = theirs
    return columns
