"""Whether this service lives, and whether there is a worker behind it."""

import shutil
import time
from collections.abc import Iterable
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
    """That it answers at all."""

    status: Literal["ok"] = "ok"


class QueueView(BaseModel):
    """A queue, the workers that take from it, and how many jobs wait in it by priority."""

    workers: int
    ready: int
    lengths: dict[str, int] = Field(examples=[{"high": 0, "normal": 3, "low": 0}])


class Ready(BaseModel):
    """Whether a forecast finds a worker now. The fields below ``device_warning`` are ours."""

    status: Literal["ok", "loading"]
    model_loaded: bool
    device: str | None = Field(default=None, examples=["cuda:0"])
    device_warning: str | None = Field(default=None, description="why it is not the device that was wanted")
    model: str | None = None
    queues: dict[str, QueueView] = {}


class ModelCheck(BaseModel):
    """Of the model that the workers hold."""

    status: CheckStatus
    loaded: bool
    version: str | None


class MemoryCheck(BaseModel):
    """Of the machine that this service runs on."""

    status: CheckStatus
    process_mb: float
    system_total_mb: float
    system_available_mb: float
    system_percent: float


class DiskCheck(BaseModel):
    """Of the disk that this service writes to."""

    status: CheckStatus
    total_gb: float
    free_gb: float
    percent: float


class Checks(BaseModel):
    """All checks of this service."""

    model: ModelCheck
    memory: MemoryCheck
    disk: DiskCheck


class Detailed(BaseModel):
    """Everything at a glance."""

    status: CheckStatus
    timestamp: datetime
    uptime_seconds: float
    checks: Checks


@router.get("/healthz", response_model=Alive)
async def healthz() -> Alive:
    """Whether this service answers; says nothing of Redis and workers."""
    return Alive()


@router.get(
    "/readyz",
    response_model=Ready,
    responses={503: {"model": Ready, "description": "no worker is ready, or Redis does not answer"}},
)
async def readyz(backend: BackendDependency) -> Response:
    """Whether a worker for forecasts is ready."""
    try:
        ready = readiness(await backend.pool())
    except JobError:  # Redis does not answer; /v1/workers says so
        ready = Ready(status="loading", model_loaded=False)
    if ready.model_loaded:
        return Json(ready, 200)
    return Json(ready, 503, {"Retry-After": str(RETRY_S)})


@router.get("/healthz/detailed", response_model=Detailed)
async def detailed(backend: BackendDependency) -> Detailed:
    """The model that the workers hold, and memory and disk of this machine."""
    checks = Checks(model=await _check_model(backend), memory=_check_memory(), disk=_check_disk(backend))
    found: set[CheckStatus] = {checks.model.status, checks.memory.status, checks.disk.status}
    status: CheckStatus = (
        "unhealthy" if "unhealthy" in found else "degraded" if "degraded" in found else "healthy"
    )
    uptime_s = round(time.monotonic() - backend.started, 3)
    return Detailed(status=status, timestamp=datetime.now(UTC), uptime_seconds=uptime_s, checks=checks)


def readiness(pool: Pool) -> Ready:
    """By the workers for forecasts, those on a GPU first: they are who jobs for any device go to."""
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
    """By queue."""
    views = {}
    for queue in QUEUES:
        workers = [worker for worker in pool.workers if worker.queue == queue]
        ready = sum(worker.is_ready for worker in workers)
        lengths = {str(priority): length for priority, length in pool.lengths[queue].items()}
        views[queue] = QueueView(workers=len(workers), ready=ready, lengths=lengths)
    return views


def model_version(worker: ForecastWorkerStatus) -> str | None:
    """A worker's own model, as predictions name it; None while it loads."""
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
    try:
        worker = _first_ready((await backend.pool()).workers)
    except JobError:
        return ModelCheck(status="unhealthy", loaded=False, version=None)
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
