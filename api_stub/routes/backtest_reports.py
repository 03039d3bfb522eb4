"""The report of a backtest as a file: JSON, a page, or the table of its forecasts."""

import shutil
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header
from fastapi.responses import FileResponse

from api_stub.backend import BackendDependency
from api_stub.keys import needs
from api_stub.problems import HttpCode, HttpError
from api_stub.routes.job_views import BACKTESTS
from api_stub.routes.jobs import AnyId
from api_stub.routes.tables import preferred
from kronos_client.registry.registered_model import output_folder

router = APIRouter(prefix=BACKTESTS, tags=["backtests"], dependencies=[needs("train")])

REPORT: Final = "report.json"
JSON: Final = "application/json"
FILES: Final = {"text/html": "report.html", "application/vnd.apache.parquet": "forecasts.parquet"}
HEADERS: Final = {
    "Vary": "Accept",
    # The page has styles of its own and nothing else; it shows names that a job chose.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "X-Content-Type-Options": "nosniff",
}
CONTENT: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "the report, the same as a page, or the table of its forecasts",
        "content": {
            JSON: {"schema": {"type": "object"}},
            **{media_type: {"schema": {"type": "string", "format": "binary"}} for media_type in FILES},
        },
    }
}


@router.get("/{job_id}/report", response_class=FileResponse, responses=CONTENT)
async def get_backtest_report(
    job_id: AnyId, backend: BackendDependency, accept: Annotated[str, Header(include_in_schema=False)] = ""
) -> FileResponse:
    """The report of a backtest that is done, also after its result has expired."""
    media_type = preferred(accept, FILES) or JSON
    folder = await backend.call(_existing, backend.settings.model_folder, job_id)
    return FileResponse(folder / FILES.get(media_type, REPORT), media_type=media_type, headers=HEADERS)


@router.delete("/{job_id}/report", status_code=204, dependencies=[needs("admin")])
async def delete_backtest_report(job_id: AnyId, backend: BackendDependency) -> None:
    """Delete the files of a backtest that is done. Nothing else deletes them."""
    folder = await backend.call(_existing, backend.settings.model_folder, job_id)
    try:
        await backend.call(shutil.rmtree, folder.parent)
    except OSError as error:
        message = (
            f"the report cannot be deleted ({error.strerror}): let this service write in "
            "KRONOS_MODEL_FOLDER, or delete it there"
        )
        raise HttpError(HttpCode.READ_ONLY, message) from error


def _existing(model_folder: Path | None, job_id: str) -> Path:
    """The folder of a report. Raises HttpError NOT_FOUND. Blocks."""
    if model_folder is not None:
        folder = output_folder(model_folder, job_id)
        if (folder / REPORT).is_file():  # written last
            return folder
    raise HttpError(
        HttpCode.NOT_FOUND,
        "this service's KRONOS_MODEL_FOLDER has no report of this backtest: wait until it is done; if it is, "
        "set the folder to that of the workers",
        "job_id",
    )
