"""A job's states as server-sent events."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi.sse import ServerSentEvent
from pydantic import BaseModel

from api_stub.backend import Backend
from api_stub.routes.job_views import problem_of
from api_stub.watching import Meta
from kronos_client.contract.errors import JobError
from kronos_client.core.handle import JobHandle


async def job_events(
    backend: Backend, handle: JobHandle[Any, Any], view: Callable[[str, Meta | None], BaseModel]
) -> AsyncIterator[ServerSentEvent]:
    """`progress` events, and one `end` event once the job has ended; each has the job's whole view.

    Where it cannot be told any more how the job goes on, one `problem` event instead. Where this process
    ends before the job does, the events end without either: ask again.
    """
    try:
        async for meta, has_ended in backend.states(handle):
            content = view(handle.id, meta).model_dump_json()
            yield ServerSentEvent(raw_data=content, event="end" if has_ended else "progress")
    except JobError as error:  # the status of the response is told already
        yield ServerSentEvent(raw_data=problem_of(error).model_dump_json(), event="problem")
