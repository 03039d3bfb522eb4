"""Why a job is where it is, as ``kronos job`` says it, and the messages that no worker could read."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from api_stub.backend import BackendDependency
from api_stub.keys import has_admin, needs
from api_stub.routes.query import Limit
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import MAX_ID_CHARS
from kronos_client.core.job_facts import JobFacts

router = APIRouter(prefix="/v1", tags=["operation"])

MAX_EXCERPT_CHARS: Final = 200


class DeadMessage(BaseModel):
    """A message that no worker could read."""

    at: float | None = Field(default=None, description="Unix time in seconds")
    reason: str | None = None
    queue: str | None = None
    id: str | None = Field(default=None, description="of its job, if it could be read")
    num_bytes: int | None = None
    message: str = Field(default="", description=f"its first {MAX_EXCERPT_CHARS} characters")


class DeadMessagesView(BaseModel):
    """The newest dead messages, and the number of all."""

    messages: list[DeadMessage]
    total: int


@router.get("/jobs/{job_id}/explanation", dependencies=[needs("predict", "train")])
async def explain_job(
    job_id: Annotated[str, Path(max_length=MAX_ID_CHARS, description="id of a job of any kind")],
    request: Request,
    backend: BackendDependency,
) -> JobFacts:
    """Where a job is, its attempts, what it waits for and what to do next, as `kronos job` says it."""
    facts = await backend.facts(job_id, reads_dead=has_admin(request))
    if facts.where == "unknown" and facts.dead_reason is None:
        raise JobError(ErrorCode.LOST, f"nothing is known about this job. {facts.next}", "job_id")
    return facts


@router.get("/dead-messages", dependencies=[needs("admin")])
async def list_dead_messages(backend: BackendDependency, limit: Limit = 100) -> DeadMessagesView:
    """The messages that no worker could read, newest first, each with the reason."""
    found = await backend.dead()
    return DeadMessagesView(messages=[_view(message) for message in found[:limit]], total=len(found))


def _view(entry: dict[str, Any]) -> DeadMessage:
    """An entry, which another program may have written: fields of another type are left out."""
    excerpt = str(entry.get("message", ""))[:MAX_EXCERPT_CHARS]
    texts = {name: str(entry[name]) for name in ("reason", "queue", "id") if entry.get(name) is not None}
    at, num_bytes = entry.get("at"), entry.get("num_bytes")
    return DeadMessage(
        at=at if isinstance(at, int | float) else None,
        num_bytes=num_bytes if isinstance(num_bytes, int) else None,
        message=excerpt,
        **texts,
    )
