"""Routes of forecast jobs: enqueue, read, follow, cancel."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from api_stub.addresses import Mount
from api_stub.backend import BackendDependency
from api_stub.routes.documented import AsDocumented, LargeBodies, json_only
from api_stub.routes.identity import JobId, MayBeRepeated
from api_stub.routes.job_views import FORECASTS_URL, Accepted, ForecastView, Json, forecast_view
from api_stub.routes.jobs import AnyId, ExistingId, enqueue_job, job_events
from kronos_client.contract.forecast import ForecastJob
from kronos_client.core.job import forecast_job

router = APIRouter(
    prefix=FORECASTS_URL, tags=["forecasts"], dependencies=[Depends(json_only)], route_class=LargeBodies
)

ForecastBody = Annotated[dict[str, Any], AsDocumented(ForecastJob)]


@router.post("", status_code=202, response_model=Accepted)
async def enqueue(
    job: ForecastBody, backend: BackendDependency, mount: Mount, job_id: JobId, is_repeated: MayBeRepeated
) -> Response:
    """Enqueue a forecast job as in docs/reference/contract.md. The answer does not wait for it."""
    return await enqueue_job(
        backend, forecast_job, job, job_id, mount + FORECASTS_URL, is_repeated=is_repeated
    )


@router.get("/{job_id}", response_model=ForecastView)
async def look(job_id: AnyId, backend: BackendDependency) -> Response:
    """The job's state and progress, and its result once it is done."""
    return Json(forecast_view(job_id, await backend.read(job_id)))


@router.delete("/{job_id}", status_code=202, response_model=ForecastView)
async def cancel(job_id: AnyId, backend: BackendDependency) -> Response:
    """Cancel the job. A job that has ended stays as it is."""
    return Json(forecast_view(job_id, await backend.cancel(job_id)), 202)


@router.get("/{job_id}/events", response_class=EventSourceResponse)
async def events(job_id: ExistingId, backend: BackendDependency) -> AsyncIterator[ServerSentEvent]:
    """The job's states as they change: `progress` events, then one `end` event with result or error."""
    async for event in job_events(backend, job_id, forecast_view):
        yield event
