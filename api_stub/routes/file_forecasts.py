"""Forecasts of files: an uploaded one, or a data set."""

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from pydantic_core import to_jsonable_python

from api_stub.keys import needs
from api_stub.problems import HttpError
from api_stub.routes.candles import BadRows, Dropped, Instrument, Name, file_warnings, read_body, read_path
from api_stub.routes.documented import json_only
from api_stub.routes.job_views import FORECASTS, ForecastView
from api_stub.routes.submission import Waiting
from api_stub.routes.tables import AS_TABLES, table_response
from api_stub.uploads.body import FILE_BODY, ReadOptionsDependency
from api_stub.uploads.dataset_folder import data_folder, dataset_path
from api_stub.webhooks.sender import WebhooksDependency
from kronos_client.contract.errors import JobError
from kronos_client.contract.forecast import MAX_EVENTS, MAX_QUANTILES
from kronos_client.contract.names import Priority
from kronos_client.core.forecast_request import fewer_paths
from kronos_client.core.job import candles_job

router = APIRouter(prefix=f"{FORECASTS}/file", tags=["forecasts"], dependencies=[needs("predict")])

_PART: Final = re.compile(r"^(sampling|output)\.")


class FileForecast(BaseModel):
    """What to forecast. What is left out has the defaults of the Python clients."""

    pred_len: Annotated[int, Field(ge=1, description="bars to forecast", examples=[3])]
    lookback: Annotated[int, Field(ge=1, description="last bars that the model reads")] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    sample_count: Annotated[int, Field(description="paths to draw; default 64")] | None = None
    seed: int | None = None
    quantiles: Annotated[list[float], Field(max_length=MAX_QUANTILES)] | None = None
    paths: bool | None = None
    events: Annotated[
        list[str], Field(max_length=MAX_EVENTS, description="such as close>last+2% at 24; may be repeated")
    ] = []
    statistics: bool | None = None
    calendar: Annotated[str, Field(description="such as XNYS, 24/7 or weekdays")] | None = None
    calibrated: bool | None = None
    timezone: Annotated[str, Field(description="IANA zone that the forecast times follow")] | None = None
    model: str | None = None
    device: str | None = None
    allow_fallback: bool | None = None
    priority: Priority | None = None
    deadline_s: float | None = None


class FileForecastView(ForecastView):
    """A forecast job, and the rows of its file that were left out."""

    dropped: Dropped
    bad_rows: BadRows
    file_warnings: list[str] = Field(
        description="what is odd about the file, such as a cut last line, and fewer paths than by default"
    )


# async, because FastAPI runs sync dependencies on threads.
async def _options(options: Annotated[FileForecast, Query()]) -> Any:
    return options.model_dump(exclude_none=True)


def _in_request(error: JobError, default: str | None = None) -> JobError:
    """The error with the request's name of the field, or with the default if it names none."""
    if error.field is None or error.field.startswith("series"):  # the candles are the body
        field = default if error.field is None else "body"
        return JobError(error.code, error.message, field, error.details)
    return error.renamed(_PART.sub("", error.field))


Dataset = Annotated[
    str | None,
    Query(max_length=1000, description="a file of GET /v1/datasets, in place of a body; send it as JSON"),
]


@router.post(
    "",
    responses=AS_TABLES
    | {202: {"model": FileForecastView, "description": "not done in time, or no worker; the job goes on"}},
    response_model=FileForecastView,
    openapi_extra=FILE_BODY,
)
async def forecast_file(
    waiting: Waiting,
    webhooks: WebhooksDependency,
    read_options: ReadOptionsDependency,
    options: Annotated[Any, Depends(_options)],
    name: Name = "candles.csv",
    instrument: Instrument = None,
    dataset: Dataset = None,
    webhook: Annotated[str | None, Query(description="address to call when the job ends")] = None,
) -> Response:
    """Forecast the bars after those of a file, and wait for it as long as for a prediction.

    If no worker serves the queue, or all load their model, the answer is 202 at once.
    The body is one CSV or Parquet file. The answer is that of `GET /v1/forecasts/{job_id}`,
    with `dropped`, `bad_rows` and `file_warnings`.
    """
    webhooks.checked(webhook)
    request, backend, submission = waiting.request, waiting.backend, waiting.submission
    wanted = {"instrument": instrument, "max_bars": backend.settings.max_bars}
    options["missing"] = read_options.missing  # the job settles them, and its result says how many
    if dataset is None:
        content = await read_body(request, backend, read_options, name, wanted)
    else:
        await json_only(request)
        path = await backend.call(dataset_path, data_folder(backend.settings), dataset)
        content = await read_path(path, dataset, backend, read_options, wanted)
    candles = dict(content["series"])
    options["series_ids"] = [candles.pop("id")]
    options = {"timezone": candles.pop("timezone", None)} | options

    def make() -> Any:
        try:
            return candles_job(candles, options, submission.job_id, backend.settings)
        except JobError as error:
            raise _in_request(error, "body") from None

    job, _ = await backend.core.send(make, may_stay=True, scope=None if webhook else submission.scope)
    url = f"{submission.root}{FORECASTS}/{job.id}"
    await webhooks.add(job.id, url, webhook)
    work = backend.core.wait(job.id, waiting.preference.wait_s, while_unserved=False)
    stored = await waiting.while_connected(work, [] if webhook else [job.id])
    left_out = {name: content[name] for name in ("dropped", "bad_rows")}
    fewer = fewer_paths(options, backend.settings.limits())
    left_out["file_warnings"] = [*file_warnings(content, instrument), *fewer]
    view = FileForecastView.from_stored(job.id, stored, **left_out)
    headers = {"X-Job-Id": job.id, "Location": url}
    if view.error is not None:
        raise HttpError.from_job(_in_request(stored.value), job.id)
    if view.result is None:
        return JSONResponse(to_jsonable_python(view), 202, headers | {"Retry-After": "1"})
    if waiting.table is not None:
        warnings = [*view.file_warnings, *view.result.all_warnings()]
        return await table_response(waiting.table, view.result.series, warnings, headers)
    return JSONResponse(to_jsonable_python(view), 200, headers)
