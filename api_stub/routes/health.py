"""Health of this service, and readiness of the workers."""

import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import psutil
from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from api_stub.backend import Backend, BackendDependency, Pool
from api_stub.routes.job_views import Json
from kronos_client.contract.errors import JobError
from kronos_client.contract.names import GPU_QUEUE
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus
from kronos_client.redis.queues import QUEUES

router = APIRouter(prefix="/v1", tags=["operation"])

MIB: Final = 2**20
GIB: Final = 2**30
HIGH_PERCENT: Final = 95.0
RETRY_S: Final = 5

CheckStatus = Literal["healthy", "degraded", "unhealthy"]


class Alive(BaseModel):
    """The answer of a live service."""

    status: Literal["ok"] = "ok"


class QueueView(BaseModel):
    """A queue: its workers, and its waiting jobs by priority."""

    workers: int
    ready: int
    lengths: dict[str, int] = Field(examples=[{"high": 0, "normal": 3, "low": 0}])


class Ready(BaseModel):
    """Whether a forecast worker is ready. The reference service lacks the fields below ``device_warning``."""

    status: Literal["ok", "loading"]
    model_loaded: bool
    device: str | None = Field(default=None, examples=["cuda:0"])
    device_warning: str | None = Field(
        default=None, description="why the worker does not use the requested device"
    )
    model: str | None = None
    queues: dict[str, QueueView] = {}


class ModelCheck(BaseModel):
    """The model that the workers hold."""

    status: CheckStatus
    loaded: bool
    version: str | None


class MemoryCheck(BaseModel):
    """Memory of the machine that runs this service."""

    status: CheckStatus
    process_mb: float
    system_total_mb: float
    system_available_mb: float
    system_percent: float


class DiskCheck(BaseModel):
    """The disk that this service writes to."""

    status: CheckStatus
    total_gb: float
    free_gb: float
    percent: float


class Checks(BaseModel):
    """The checks of the detailed health answer."""

    model: ModelCheck
    memory: MemoryCheck
    disk: DiskCheck


class Detailed(BaseModel):
    """The detailed health answer."""

    status: CheckStatus
    timestamp: datetime
    uptime_seconds: float
    checks: Checks


@router.get("/healthz", response_model=Alive)
async def healthz() -> Alive:
    """Whether this service answers. Redis and the workers are not checked."""
    return Alive()


@router.get(
    "/readyz",
    response_model=Ready,
    responses={503: {"model": Ready, "description": "no worker is ready, or Redis does not answer"}},
)
async def readyz(backend: BackendDependency) -> Response:
    """Whether a forecast worker is ready."""
    try:
        ready = readiness(await backend.pool())
    except JobError:  # Redis does not answer; /v1/workers reports it
        ready = Ready(status="loading", model_loaded=False)
    return Json(ready) if ready.model_loaded else Json(ready, 503, {"Retry-After": str(RETRY_S)})


@router.get("/healthz/detailed", response_model=Detailed)
async def detailed(backend: BackendDependency) -> Detailed:
    """Checks of the workers' model, and of this machine's memory and disk."""
    checks = Checks(model=await _check_model(backend), memory=_check_memory(), disk=_check_disk(backend))
    found = (checks.model.status, checks.memory.status, checks.disk.status)
    status = max(found, key=("healthy", "degraded", "unhealthy").index)
    uptime_s = round(time.monotonic() - backend.started, 3)
    return Detailed(status=status, timestamp=datetime.now(UTC), uptime_seconds=uptime_s, checks=checks)


def readiness(pool: Pool) -> Ready:
    """Readiness of the forecast workers. Those on a GPU come first, as they do for jobs on any device."""
    first = _first_ready(pool.workers)
    shown = first or next(iter(_forecasting(pool.workers)), None)
    return Ready(
        status="loading" if first is None else "ok",
        model_loaded=first is not None,
        device=None if shown is None else shown.device,
        device_warning=None if shown is None else shown.device_warning,
        model=None if shown is None else model_version(shown),
        queues=queue_views(pool),
    )


def queue_views(pool: Pool) -> dict[str, QueueView]:
    """A view of each queue, by its name."""
    views = {}
    for queue in QUEUES:
        workers = [worker for worker in pool.workers if worker.queue == queue]
        ready = sum(worker.is_ready for worker in workers)
        lengths = {str(priority): length for priority, length in pool.lengths[queue].items()}
        views[queue] = QueueView(workers=len(workers), ready=ready, lengths=lengths)
    return views


def model_version(worker: ForecastWorkerStatus) -> str | None:
    """The id of a worker's own model, as in predictions; None while it loads."""
    model = worker.model
    if model is None:
        return None
    return model.id if model.revision is None else f"{model.id}@{model.revision}"


def _forecasting(workers: Iterable[AnyWorkerStatus]) -> list[ForecastWorkerStatus]:
    return sorted(
        (worker for worker in workers if isinstance(worker, ForecastWorkerStatus)),
        key=lambda worker: worker.queue != GPU_QUEUE,
    )


def _first_ready(workers: Iterable[AnyWorkerStatus]) -> ForecastWorkerStatus | None:
    return next((worker for worker in _forecasting(workers) if worker.is_ready), None)


async def _check_model(backend: Backend) -> ModelCheck:
    worker = None
    with suppress(JobError):  # Redis does not answer: no worker is known
        worker = _first_ready((await backend.pool()).workers)
    if worker is None:
        return ModelCheck(status="unhealthy", loaded=False, version=None)
    return ModelCheck(status="healthy", loaded=True, version=model_version(worker))


def _check_memory() -> MemoryCheck:
    system = psutil.virtual_memory()
    return MemoryCheck(
        status="degraded" if system.percent >= HIGH_PERCENT else "healthy",
        process_mb=round(psutil.Process().memory_info().rss / MIB, 1),
        system_total_mb=round(system.total / MIB, 1),
        system_available_mb=round(system.available / MIB, 1),
        system_percent=system.percent,
    )


def _check_disk(backend: Backend) -> DiskCheck:
    folder = backend.settings.data_folder
    disk = shutil.disk_usage(folder if folder is not None and folder.is_dir() else Path.cwd())
    percent = round(100 * disk.used / disk.total, 1) if disk.total else 0.0
    return DiskCheck(
        status="degraded" if percent >= HIGH_PERCENT else "healthy",
        total_gb=round(disk.total / GIB, 2),
        free_gb=round(disk.free / GIB, 2),
        percent=percent,
    )
