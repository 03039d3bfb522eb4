"""The live workers, the queues, and the largest jobs that are accepted."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from api_stub.backend import BackendDependency, Pool
from api_stub.settings import ApiSettings
from kronos_client.contract.worker_status import AnyWorkerStatus

router = APIRouter(prefix="/v1", tags=["operation"])


class QueueView(BaseModel):
    """A queue: its workers, and its waiting jobs by priority."""

    workers: int
    ready: int
    lengths: dict[str, int] = Field(examples=[{"high": 0, "normal": 3, "low": 0}])


class WorkersView(BaseModel):
    """The live workers and all queues."""

    workers: list[Annotated[AnyWorkerStatus, Field(discriminator="role")]] = Field(
        description="each as `kronos status --json` prints it"
    )
    queues: dict[str, QueueView]
    limits: dict[str, int] = Field(
        description="the most that this service and all its forecast workers accept in a job or an upload",
        examples=[{"max_sample_count": 256, "max_bars": 8192, "max_upload_bytes": 268435456}],
    )


@router.get("/workers", response_model_exclude_unset=True)
async def list_workers(backend: BackendDependency) -> WorkersView:
    """Every worker's status. Workers announce it every five seconds; it is read at most once a second."""
    pool = await backend.pool()
    limits = _limits(pool, backend.settings)
    return WorkersView(workers=pool.workers, queues=queue_views(pool), limits=limits)


def queue_views(pool: Pool) -> dict[str, QueueView]:
    """A view of each queue, by its name."""
    views = {}
    for queue, state in pool.queues.items():
        workers = [worker for worker in pool.workers if worker.queue == queue]
        ready = sum(worker.is_ready for worker in workers)
        views[queue] = QueueView(workers=len(workers), ready=ready, lengths=state.lengths)
    return views


def _limits(pool: Pool, settings: ApiSettings) -> dict[str, int]:
    """This service's limits, lowered to those of the forecast worker that accepts least."""
    own = settings.limits().model_dump(exclude={"max_pred_len"})
    lowest = {
        name: min([limit, *(worker.limits.get(name, limit) for worker in pool.forecasting)])
        for name, limit in own.items()
    }
    return lowest | {"max_upload_bytes": settings.api_max_upload_bytes}
