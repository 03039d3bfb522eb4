"""A job's states as server-sent events."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from fastapi.sse import ServerSentEvent
from pydantic import BaseModel

from api_stub.backend import Backend
from api_stub.routes.job_views import problem_of
from kronos_client.contract.errors import JobError
from kronos_client.core.stored import Stored


async def job_events(
    backend: Backend, job_id: str, view: Callable[[str, Stored], BaseModel]
) -> AsyncIterator[ServerSentEvent]:
    """`progress` events, and one `end` event once the job has ended; each has the job's whole view.

    If nothing can be known of the job any more, one `problem` event instead. If this process ends before the
    job does, the events end without either: ask again.
    """
    try:
        async with aclosing(backend.core.events.states(job_id)) as states:
            async for stored in states:
                content = view(job_id, stored).model_dump_json()
                yield ServerSentEvent(raw_data=content, event="end" if stored.has_ended else "progress")
    except JobError as error:  # too late for the status of the response
        yield ServerSentEvent(raw_data=problem_of(error).model_dump_json(), event="problem")
