"""Files of candles for finetuning: uploaded into the data folder, whole and readable, or not at all."""

from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import AfterValidator, BaseModel, Field

from api_stub.backend import BackendDependency
from api_stub.problems import HttpCode, HttpError
from api_stub.routes.job_views import Json
from api_stub.uploads.dataset_folder import DATASET_NAME, DatasetFolder, StoredFile
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.columns import COLUMNS

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

MEDIA_TYPES: Final = {
    "text/csv": (".csv",),
    "application/vnd.apache.parquet": (".parquet", ".pq"),
    "application/octet-stream": (".csv", ".parquet", ".pq"),
}
"""What a file may be sent as. Browsers let pages of other sites send none of these unasked, unlike forms."""


def _checked_name(given: str) -> str:
    """With its end in small letters, by which finetuning knows what a file is."""
    stem, dot, suffix = given.rpartition(".")
    name = f"{stem}{dot}{suffix.lower()}"
    if not DATASET_NAME.fullmatch(name):
        raise ValueError(
            "a file's name is a letter or digit, then up to 99 of letters, digits, `.`, `_` and `-`, and "
            "ends in .csv, .parquet or .pq; no folders"
        )
    return name


Name = Annotated[
    str,
    AfterValidator(_checked_name),
    Query(
        description="of the file, as jobs will name it in data.path; its end says what it is, and is put in "
        "small letters",
        examples=["AAPL-5min.csv"],
    ),
]
InstrumentColumn = Annotated[
    str | None, Query(max_length=100, description="column that names the instrument, in a file of several")
]
MappedColumns = Annotated[
    list[str] | None,
    Query(
        alias="column",
        max_length=len(COLUMNS) + 1,
        description="what the file calls a column, where that is not its name, such as `close:Adj Close`",
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
    """A file that was taken in, and what finetuning would read in it."""

    name: str = Field(description="as a finetuning job names it in `data.path`")
    num_bytes: int
    is_replaced: bool = Field(description="whether there was a file of that name, which is gone")
    num_instruments: int
    num_bars: int
    num_gaps: int = Field(description="missing bars within days")
    dropped: dict[str, int] = Field(description="rows that cannot be used, by reason")
    instruments: list[InstrumentSummary] = Field(description="the first ones")


class DatasetsView(BaseModel):
    """The files in the data folder."""

    datasets: list[StoredFile]


@router.get("", response_model=DatasetsView)
async def datasets(backend: BackendDependency) -> Response:
    """The files that finetuning jobs may name, those in folders below included."""
    folder = DatasetFolder.of(backend.settings)
    return Json(DatasetsView(datasets=await backend.call(folder.list)))


@router.post(
    "",
    status_code=201,
    response_model=DatasetReport,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                media_type: {"schema": {"type": "string", "format": "binary"}} for media_type in MEDIA_TYPES
            },
        }
    },
)
async def upload(
    request: Request,
    backend: BackendDependency,
    name: Name,
    replace: Annotated[bool, Query(description="whether a file of that name may be replaced")] = False,
    instrument_column: InstrumentColumn = None,
    column: MappedColumns = None,
) -> Response:
    """Send one CSV or Parquet file as the body. It is there for jobs once it was read through."""
    _check_media_type(request, name)
    config = {"instrument_column": instrument_column, "columns": _columns(column)}
    folder = DatasetFolder.of(backend.settings)
    async with backend.uploading():
        stored = await folder.store(
            name, _chunks(request), config, may_replace=replace, reading=backend.reading_datasets
        )
    report = DatasetReport.model_validate({**stored.report, **stored.as_dict()})
    return Json(report, 201)


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        if chunk:
            yield chunk


def _check_media_type(request: Request, name: str) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not name.endswith(MEDIA_TYPES.get(media_type, ())):
        raise HttpError(
            HttpCode.UNSUPPORTED_MEDIA_TYPE,
            "send a .csv as text/csv and a .parquet as application/vnd.apache.parquet, or either as "
            "application/octet-stream; not as a form",
        )


def _columns(mapped: list[str] | None) -> dict[str, str]:
    columns: dict[str, str] = {}
    for entry in mapped or []:
        own, _, theirs = entry.partition(":")
        if own not in ("timestamps", *COLUMNS) or not theirs or own in columns:
            raise JobError(
                ErrorCode.BAD_VALUE,
                f"column: write one of timestamps, {', '.join(COLUMNS)}, a colon, and what the file calls it",
                "column",
            )
        columns[own] = theirs
    return columns
