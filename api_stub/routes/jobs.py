"""The parts that the routes of forecast and finetuning jobs share: enqueueing, and following by events."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Path
from fastapi.responses import Response
from fastapi.sse import ServerSentEvent
from pydantic import BaseModel

from api_stub.backend import Backend, BackendDependency
from api_stub.routes.job_views import Json, accepted, problem_of
from api_stub.settings import ApiSettings
from kronos_client.contract.errors import JobError
from kronos_client.contract.names import MAX_ID_CHARS
from kronos_client.core.job import Job
from kronos_client.core.stored import NOTHING, Stored

AnyId = Annotated[str, Path(max_length=MAX_ID_CHARS, description="id of the job")]


async def _existing_id(job_id: AnyId, backend: BackendDependency) -> str:
    """Answers 404 for an unknown job, which is impossible once the events have begun."""
    await backend.read(job_id)
    return job_id


ExistingId = Annotated[str, Depends(_existing_id)]


async def enqueue_job(
    backend: Backend,
    make_job: Callable[[dict[str, Any], str, ApiSettings], Job],
    payload: dict[str, Any],
    job_id: str,
    url: str,
    *,
    is_repeated: bool,
) -> Response:
    """Check and send a job, and answer with its address. Raises JobError."""
    make = partial(make_job, payload, job_id, backend.settings)
    job, queue = await backend.core.send(make, may_stay=True)
    # A new job waits in its queue. Only a job that was sent before may have progressed.
    stored = await backend.read(job.id) if is_repeated else NOTHING
    content = accepted(job.id, queue, url, stored)
    return Json(content, 202, {"X-Job-Id": job.id, "Location": content.url})


async def job_events(
    backend: Backend, job_id: str, view: Callable[[str, Stored], BaseModel]
) -> AsyncIterator[ServerSentEvent]:
    """Yield `progress` events, and one `end` event once the job has ended. Each has the job's whole view.

    If the job is lost, one `problem` event ends the stream. If this process stops before the job ends, the
    stream ends without either, and the client must ask again.
    """
    try:
        async with aclosing(backend.core.events.states(job_id)) as states:
            async for stored in states:
                content = view(job_id, stored).model_dump_json()
                yield ServerSentEvent(raw_data=content, event="end" if stored.has_ended else "progress")
    except JobError as error:  # the response has begun, so its status cannot change
        yield ServerSentEvent(raw_data=problem_of(error).model_dump_json(), event="problem")
