"""The live workers, as they announce themselves."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from api_stub.backend import BackendDependency
from api_stub.routes.health import QueueView, queue_views
from api_stub.routes.job_views import Json

router = APIRouter(prefix="/v1/workers", tags=["operation"])


class WorkersView(BaseModel):
    """The live workers and all queues."""

    workers: list[dict[str, Any]] = Field(description="each as `kronos status --json` prints it")
    queues: dict[str, QueueView]


@router.get("", response_model=WorkersView)
async def workers(backend: BackendDependency) -> Response:
    """Every worker's status. Workers announce it every five seconds; it is read at most once a second."""
    pool = await backend.pool()
    return Json(WorkersView(workers=[worker.as_json() for worker in pool.workers], queues=queue_views(pool)))
