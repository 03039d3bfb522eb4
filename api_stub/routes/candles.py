"""Files of candles for forecasts: read by the API, so that every client reads them by the same rules."""

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from api_stub.backend import Backend, BackendDependency
from api_stub.keys import needs
from api_stub.uploads.body import FILE_BODY, ReadOptionsDependency, receiving
from api_stub.uploads.file_process import read_upload
from kronos_client.contract.errors import ErrorCode
from kronos_model.bars.files.find import SUFFIXES, series_name
from kronos_model.bars.files.options import ReadOptions

router = APIRouter(prefix="/v1/candles", tags=["candles"], dependencies=[needs("predict")])

MAX_BARS: Final = 16_384


class Bars(BaseModel):
    """The bars of one instrument, in the form of a series in a forecast job."""

    id: str
    timestamps: list[str]
    timezone: str | None = Field(default=None, description="IANA zone whose clock the timestamps follow")
    open: list[float]
    high: list[float]
    low: list[float]
    close: list[float]
    volume: list[float] | None = None
    amount: list[float] | None = None


Dropped = Annotated[
    dict[str, int], Field(description="number of unusable rows that were left out, by reason")
]
BadRows = Annotated[list[str], Field(description="what is wrong with the first of these")]


class FileContent(BaseModel):
    """The last bars of a file, oldest first."""

    series: Bars = Field(description="can be used unchanged in a forecast job's `series`")
    instruments: list[str] = Field(description="all instruments of the file, if it has several")
    dropped: Dropped
    bad_rows: BadRows
    warnings: list[str] = Field(
        description="bars without prices that were filled or left out, and what is odd about the file"
    )
    explanation: list[str] = Field(
        description="what was recognised: which column became what, in which zone and unit, what was left out"
    )


Name = Annotated[str, Query(max_length=200, description="name of the file; its suffix sets the format")]
Instrument = Annotated[
    str | None, Query(max_length=200, description="if the file has several; default: the first one")
]


@router.post("", response_model_exclude_none=True, openapi_extra=FILE_BODY)
async def read_candles(
    request: Request,
    backend: BackendDependency,
    options: ReadOptionsDependency,
    name: Name = "candles.csv",
    instrument: Instrument = None,
    max_bars: Annotated[
        int | None, Query(ge=1, le=MAX_BARS, description="bars to answer; default: as many as a job may have")
    ] = None,
) -> FileContent:
    """Read the body, one CSV or Parquet file, and answer its last bars. Nothing is kept."""
    most = max_bars or min(backend.settings.max_bars, MAX_BARS)
    wanted = {"instrument": instrument, "max_bars": most, "is_settled": True}
    return FileContent.model_validate(await read_body(request, backend, options, name, wanted))


async def read_body(
    request: Request, backend: Backend, options: ReadOptions, name: str, wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of the file that is the body. Raises as ``receiving`` and ``read_upload``."""
    suffix = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), ".csv")
    async with receiving(request, backend, suffix) as body:
        with tempfile.TemporaryDirectory(prefix="kronos-", ignore_cleanup_errors=True) as folder:
            path = Path(folder, f"candles{suffix}")
            with path.open("xb") as file:
                async for part in body:
                    await asyncio.to_thread(file.write, part)
            return await read_path(path, name, backend, options, wanted)


async def read_path(
    path: Path, name: str, backend: Backend, options: ReadOptions, wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of a file. Raises as ``read_upload``."""
    async with backend.reading_datasets:
        content = await read_upload(path, name, options, ErrorCode.INVALID_INPUT, wanted)
    content["series"]["id"] = content["series"]["id"] or series_name(name)
    return content


def file_warnings(content: Mapping[str, Any], instrument: str | None) -> list[str]:
    """What is odd about a file, and that it has more instruments than the first, if none was asked for."""
    names = content["instruments"]
    text = f"first of {len(names):,} instruments: {content['series']['id']}; give instrument"
    return [*content["warnings"], *([text] if instrument is None and len(names) > 1 else [])]
