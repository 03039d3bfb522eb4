"""Routes of finetuning jobs: enqueue, read, follow, cancel."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from api_stub.addresses import Mount
from api_stub.backend import BackendDependency
from api_stub.routes.documented import AsDocumented, LargeBodies, json_only
from api_stub.routes.identity import JobId, MayBeRepeated
from api_stub.routes.job_views import FINETUNES_URL, Accepted, FinetuneView, Json, finetune_view
from api_stub.routes.jobs import AnyId, ExistingId, enqueue_job, job_events
from kronos_client.contract.finetune import FinetuneJob
from kronos_client.core.job import finetune_job

router = APIRouter(
    prefix=FINETUNES_URL, tags=["finetunes"], dependencies=[Depends(json_only)], route_class=LargeBodies
)

FinetuneBody = Annotated[dict[str, Any], AsDocumented(FinetuneJob)]


@router.post("", status_code=202, response_model=Accepted)
async def enqueue(
    job: FinetuneBody, backend: BackendDependency, mount: Mount, job_id: JobId, is_repeated: MayBeRepeated
) -> Response:
    """Enqueue a finetuning job as in docs/reference/contract.md. The answer does not wait for it."""
    return await enqueue_job(
        backend, finetune_job, job, job_id, mount + FINETUNES_URL, is_repeated=is_repeated
    )


@router.get("/{job_id}", response_model=FinetuneView)
async def look(job_id: AnyId, backend: BackendDependency) -> Response:
    """The job's state and progress, and its result once it is done."""
    return Json(finetune_view(job_id, await backend.read(job_id)))


@router.delete("/{job_id}", status_code=202, response_model=FinetuneView)
async def cancel(job_id: AnyId, backend: BackendDependency) -> Response:
    """Cancel training; its best checkpoint is kept. A job that has ended stays as it is."""
    return Json(finetune_view(job_id, await backend.cancel(job_id)), 202)


@router.get("/{job_id}/events", response_class=EventSourceResponse)
async def events(job_id: ExistingId, backend: BackendDependency) -> AsyncIterator[ServerSentEvent]:
    """The job's states as they change: `progress` events, then one `end` event with result or error."""
    async for event in job_events(backend, job_id, finetune_view):
        yield event
