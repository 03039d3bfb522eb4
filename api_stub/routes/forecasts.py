"""Forecast jobs: enqueue, look, follow, cancel."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from api_stub.addresses import Mount
from api_stub.backend import BackendDependency
from api_stub.routes.documented import AsDocumented, LargeBodies, json_only
from api_stub.routes.events import job_events
from api_stub.routes.identity import JobId, MayBeRepeated
from api_stub.routes.job_views import (
    FORECASTS_URL,
    Accepted,
    ForecastView,
    Json,
    accepted,
    forecast_view,
)
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.names import MAX_ID_CHARS
from kronos_client.core.job import forecast_job
from kronos_client.core.stored import NOTHING

router = APIRouter(
    prefix=FORECASTS_URL, tags=["forecasts"], dependencies=[Depends(json_only)], route_class=LargeBodies
)

ForecastBody = Annotated[dict[str, Any], AsDocumented(ForecastJob)]
AnyId = Annotated[str, Path(max_length=MAX_ID_CHARS, description="of a job, as it was answered")]


@router.post("", status_code=202, response_model=Accepted)
async def enqueue(
    job: ForecastBody, backend: BackendDependency, mount: Mount, job_id: JobId, is_repeated: MayBeRepeated
) -> Response:
    """Enqueue a forecast job in the form of docs/reference/contract.md; answered at once."""
    handle = await backend.submit(forecast_job, job, job_id)
    # A new job waits in its queue; only one that was sent before may be further.
    stored = await backend.read(handle.id) if is_repeated else NOTHING
    content = accepted(handle.id, handle.queue, mount + FORECASTS_URL, stored)
    return Json(content, 202, {"X-Job-Id": handle.id, "Location": content.url})


@router.get("/{job_id}", response_model=ForecastView)
async def look(job_id: AnyId, backend: BackendDependency) -> Response:
    """How far a job is, and its result once it is done."""
    return Json(forecast_view(job_id, await backend.read(job_id)))


@router.delete("/{job_id}", status_code=202, response_model=ForecastView)
async def cancel(job_id: AnyId, backend: BackendDependency) -> Response:
    """Ask for a job to end as cancelled. One that has ended stays as it is."""
    return Json(forecast_view(job_id, await backend.cancel(job_id)), 202)


async def _known(job_id: AnyId, backend: BackendDependency) -> str:
    """The id of a job that exists: once the events begin, their status is sent."""
    await backend.read(job_id)
    return job_id


@router.get("/{job_id}/events", response_class=EventSourceResponse)
async def events(
    job_id: Annotated[str, Depends(_known)], backend: BackendDependency
) -> AsyncIterator[ServerSentEvent]:
    """Its states as they come: `progress` events, and one `end` event with the result or the error."""
    async for event in job_events(backend, job_id, forecast_view):
        yield event
