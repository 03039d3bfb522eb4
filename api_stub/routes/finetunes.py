"""Finetuning jobs: enqueue, look, follow, cancel."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from api_stub.addresses import Mount
from api_stub.backend import BackendDependency
from api_stub.routes.documented import AsDocumented, LargeBodies, json_only
from api_stub.routes.events import job_events
from api_stub.routes.forecasts import AnyId
from api_stub.routes.identity import JobId, MayBeRepeated
from api_stub.routes.job_views import (
    FINETUNES_URL,
    Accepted,
    FinetuneView,
    Json,
    accepted,
    finetune_view,
)
from kronos_client.contract.finetune import FinetuneJob
from kronos_client.core.job import finetune_job
from kronos_client.core.stored import NOTHING

router = APIRouter(
    prefix=FINETUNES_URL, tags=["finetunes"], dependencies=[Depends(json_only)], route_class=LargeBodies
)

FinetuneBody = Annotated[dict[str, Any], AsDocumented(FinetuneJob)]


@router.post("", status_code=202, response_model=Accepted)
async def enqueue(
    job: FinetuneBody, backend: BackendDependency, mount: Mount, job_id: JobId, is_repeated: MayBeRepeated
) -> Response:
    """Enqueue a finetuning job in the form of docs/reference/contract.md; answered at once."""
    handle = await backend.submit(finetune_job, job, job_id)
    # A new job waits in its queue; only one that was sent before may be further.
    stored = await backend.read(handle.id) if is_repeated else NOTHING
    content = accepted(handle.id, handle.queue, mount + FINETUNES_URL, stored)
    return Json(content, 202, {"X-Job-Id": handle.id, "Location": content.url})


@router.get("/{job_id}", response_model=FinetuneView)
async def look(job_id: AnyId, backend: BackendDependency) -> Response:
    """How far training is, and what it came to once it is done."""
    return Json(finetune_view(job_id, await backend.read(job_id)))


@router.delete("/{job_id}", status_code=202, response_model=FinetuneView)
async def cancel(job_id: AnyId, backend: BackendDependency) -> Response:
    """Ask for training to end; its best checkpoint is kept. One that has ended stays as it is."""
    return Json(finetune_view(job_id, await backend.cancel(job_id)), 202)


async def _known(job_id: AnyId, backend: BackendDependency) -> str:
    """The id of a job that exists: once the events begin, their status is sent."""
    await backend.read(job_id)
    return job_id


@router.get("/{job_id}/events", response_class=EventSourceResponse)
async def events(
    job_id: Annotated[str, Depends(_known)], backend: BackendDependency
) -> AsyncIterator[ServerSentEvent]:
    """Its states as they come: `progress` events, and one `end` event with the result or the error."""
    async for event in job_events(backend, job_id, finetune_view):
        yield event
