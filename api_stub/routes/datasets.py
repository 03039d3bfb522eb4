"""Files of candles for finetuning. An upload is stored complete and readable, or not at all."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator, BaseModel, Field

from api_stub.backend import BackendDependency
from api_stub.keys import needs
from api_stub.routes.query import MAX_LIMIT, NEXT, Cursor, Limit, page_of
from api_stub.uploads.body import FILE_BODY, ReadOptionsDependency, receiving
from api_stub.uploads.dataset_folder import DATASET_NAME, StoredFile, data_folder, remove, store, stored_files
from kronos_model.bars.files.content import SAVE_AS_CSV
from kronos_model.bars.files.find import SUFFIXES

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])


def _checked_name(given: str) -> str:
    """The name with its suffix in lower case, as finetuning expects it."""
    suffix = next((suffix for suffix in SUFFIXES if given.lower().endswith(suffix)), "")
    name = given.removesuffix(given[len(given) - len(suffix) :]) + suffix
    if not DATASET_NAME.fullmatch(name):
        raise ValueError(
            "the name must start with a letter or digit, have up to 99 more letters, digits, `.`, `_` or "
            f"`-`, and end in .csv, .csv.gz, .parquet or .pq; it cannot contain folders. {SAVE_AS_CSV}"
        )
    return name


Name = Annotated[
    str,
    AfterValidator(_checked_name),
    Query(
        description="file name for data.path in jobs; its suffix sets the format and becomes lower case",
        examples=["AAPL.csv"],
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
    num_filled: int = Field(description="bars without prices that have the close before them")
    dropped: dict[str, int] = Field(description="number of unusable rows, by reason")
    bad_rows: list[str] = Field(description="what is wrong with the first of these")
    warnings: list[str] = Field(description="candles whose open or close lies outside low to high")
    instruments: list[InstrumentSummary] = Field(description="the first instruments")


class DatasetsView(BaseModel):
    """The files in the data folder."""

    datasets: list[StoredFile]
    next: str | None = Field(description=NEXT)


@router.get("")
async def list_datasets(
    backend: BackendDependency, limit: Limit = MAX_LIMIT, cursor: Cursor = None
) -> DatasetsView:
    """The files that finetuning jobs may name, including those in subfolders."""
    files = await backend.call(stored_files, data_folder(backend.settings))
    page, following = page_of(files, lambda file: file.name, limit, cursor)
    return DatasetsView(datasets=page, next=following)


@router.delete("/{name:path}", status_code=204, dependencies=[needs("admin")])
async def delete_dataset(
    name: Annotated[str, Path(max_length=1000, description="of a file in the list", examples=["AAPL.csv"])],
    backend: BackendDependency,
) -> None:
    """Delete a file. A finetuning job that has not read it yet fails."""
    await backend.call(remove, data_folder(backend.settings), name)


@router.post(
    "", dependencies=[needs("train")], status_code=201, response_model=DatasetReport, openapi_extra=FILE_BODY
)
async def upload_dataset(
    request: Request,
    backend: BackendDependency,
    name: Name,
    options: ReadOptionsDependency,
    replace: Annotated[bool, Query(description="whether to replace a file of that name")] = False,
) -> dict[str, Any]:
    """Store the body, one CSV or Parquet file. Jobs can use it once it has been read and checked."""
    folder = data_folder(backend.settings)
    async with receiving(request, backend, name) as body:
        return await store(folder, name, body, options, may_replace=replace, reading=backend.reading_datasets)
