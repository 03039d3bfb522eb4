"""Files of candles for forecasts: read by the API, so that every client reads them by the same rules."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from api_stub.backend import BackendDependency
from api_stub.uploads.file_body import FILE_BODY, receiving
from api_stub.uploads.file_process import read_upload
from api_stub.uploads.read_options import ReadOptionsDependency
from kronos_client.contract.errors import ErrorCode
from kronos_model.bars.files.find import SUFFIXES

router = APIRouter(prefix="/v1/candles", tags=["candles"])

MAX_BARS: Final = 16_384


class Bars(BaseModel):
    """The bars of one instrument, in the form of a series in a forecast job."""

    id: str
    timestamps: list[str]
    open: list[float]
    high: list[float]
    low: list[float]
    close: list[float]
    volume: list[float] | None = None
    amount: list[float] | None = None


class FileContent(BaseModel):
    """The last bars of a file, oldest first."""

    series: Bars = Field(description="for `series` in a forecast job, as it is")
    instruments: list[str] = Field(description="all instruments of the file, with `id_column`")
    rows: list[int] = Field(
        description="line of each bar in a CSV file, from 1; row in a Parquet file, from 0"
    )
    dropped: dict[str, int] = Field(description="number of unusable rows that were left out, by reason")
    bad_rows: list[str] = Field(description="what is wrong with the first of these")


@router.post("", response_model_exclude_none=True, openapi_extra=FILE_BODY)
async def read(
    request: Request,
    backend: BackendDependency,
    options: ReadOptionsDependency,
    name: Annotated[
        str, Query(max_length=200, description="name of the file; its suffix sets the format")
    ] = "candles.csv",
    instrument: Annotated[
        str | None, Query(max_length=200, description="with `id_column`; default: the first one")
    ] = None,
    max_bars: Annotated[
        int | None, Query(ge=1, le=MAX_BARS, description="bars to answer; default: as many as a job may have")
    ] = None,
) -> FileContent:
    """Read the body, one CSV or Parquet file, and answer its last bars. Nothing is kept."""
    suffix = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")
    wanted = {"instrument": instrument, "max_bars": max_bars or min(backend.settings.max_bars, MAX_BARS)}
    async with receiving(request, backend, suffix) as body:
        with tempfile.TemporaryDirectory(prefix="kronos-", ignore_cleanup_errors=True) as folder:
            path = Path(folder, f"candles{suffix}")
            with path.open("xb") as file:
                async for part in body:
                    await asyncio.to_thread(file.write, part)
            async with backend.reading_datasets:
                content = await read_upload(path, name, options, ErrorCode.INVALID_INPUT, wanted)
    content["series"]["id"] = content["series"]["id"] or name
    return FileContent.model_validate(content)
