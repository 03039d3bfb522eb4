"""The health of this service, and whether a worker is ready."""

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import psutil
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from api_stub.backend import Backend, BackendDependency
from api_stub.routes.predictions import version_of
from api_stub.routes.workers import QueueView, queue_views
from kronos_client import __version__
from kronos_client.contract.errors import JobError
from kronos_client.contract.model_info import EngineKind
from kronos_client.contract.names import SCHEMA_VERSION
from kronos_client.redis.queues import is_gpu_queue

router = APIRouter(prefix="/v1", tags=["operation"])

MIB: Final = 2**20
GIB: Final = 2**30
HIGH_PERCENT: Final = 95.0
RETRY_S: Final = 5

CheckStatus = Literal["healthy", "degraded", "unhealthy"]


class Alive(BaseModel):
    """The answer of a live service."""

    status: Literal["ok"] = "ok"


class Version(BaseModel):
    """Which release this service is."""

    version: str = Field(default=__version__, examples=["0.1.0"])
    schema_version: int = Field(default=SCHEMA_VERSION, description="newest layout of jobs that it reads")


class Ready(BaseModel):
    """Whether a forecast worker is ready. The reference service lacks the fields below ``device_warning``."""

    status: Literal["ok", "loading"]
    model_loaded: bool
    device: str | None = Field(default=None, examples=["cuda:0"])
    device_warning: str | None = Field(
        default=None, description="why the worker does not use the requested device"
    )
    model: str | None = None
    engine: EngineKind | None = Field(default=None, description="what computes the steps of its model")
    engine_warning: str | None = Field(default=None, description="why it is not the native one on a CPU")
    queues: dict[str, QueueView] = {}
    detail: str | None = Field(default=None, description="why no worker is ready")


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


@router.get("/healthz")
async def check_health() -> Alive:
    """Whether this service answers. Redis and the workers are not checked."""
    return Alive()


@router.get("/version")
async def get_version() -> Version:
    """The versions of this service and of the contract. `/v1/workers` has those of the workers."""
    return Version()


@router.get(
    "/readyz",
    responses={503: {"model": Ready, "description": "no worker is ready, or Redis does not answer"}},
)
async def check_readiness(backend: BackendDependency, response: Response) -> Ready:
    """Whether a forecast worker is ready."""
    ready = await _ready(backend)
    if not ready.model_loaded:
        response.status_code = 503
        response.headers["Retry-After"] = str(RETRY_S)
    return ready


@router.get("/healthz/detailed")
async def get_health_details(backend: BackendDependency) -> Detailed:
    """Checks of the workers' model, and of this machine's memory and disk."""
    ready = await _ready(backend)
    model = ModelCheck(status="unhealthy", loaded=False, version=None)
    if ready.model_loaded:
        model = ModelCheck(status="healthy", loaded=True, version=ready.model)
    checks = Checks(model=model, memory=_check_memory(), disk=_check_disk(backend.settings.data_folder))
    found = (checks.model.status, checks.memory.status, checks.disk.status)
    status = max(found, key=("healthy", "degraded", "unhealthy").index)
    uptime_s = round(time.monotonic() - backend.started, 3)
    return Detailed(status=status, timestamp=datetime.now(UTC), uptime_seconds=uptime_s, checks=checks)


async def _ready(backend: Backend) -> Ready:
    """Readiness of the forecast workers, with the device and model of a worker that is ready, if any is."""
    try:
        pool = await backend.pool()
    except JobError:  # Redis does not answer; /v1/workers reports it
        detail = "Redis does not answer; check it, and KRONOS_REDIS_URL"
        return Ready(status="loading", model_loaded=False, detail=detail)
    # A GPU comes first, as it does for jobs on any device.
    shown = max(
        pool.forecasting, key=lambda worker: (worker.is_ready, is_gpu_queue(worker.queue)), default=None
    )
    if shown is None:
        detail = "no forecast worker is alive; start one with: kronos worker"
        return Ready(status="loading", model_loaded=False, queues=queue_views(pool), detail=detail)
    own = shown.models[0] if shown.models else None
    why_not = f"no forecast worker is ready yet; {shown.node} is {shown.condition}"
    return Ready(
        status="ok" if shown.is_ready else "loading",
        model_loaded=shown.is_ready,
        device=shown.device,
        device_warning=shown.device_warning,
        model=None if shown.model is None else version_of(shown.model.id, shown.model.revision),
        engine=None if own is None else own.engine,
        engine_warning=None if own is None else own.engine_warning,
        queues=queue_views(pool),
        detail=None if shown.is_ready else why_not,
    )


def _check_memory() -> MemoryCheck:
    system = psutil.virtual_memory()
    return MemoryCheck(
        status="degraded" if system.percent >= HIGH_PERCENT else "healthy",
        process_mb=round(psutil.Process().memory_info().rss / MIB, 1),
        system_total_mb=round(system.total / MIB, 1),
        system_available_mb=round(system.available / MIB, 1),
        system_percent=system.percent,
    )


def _check_disk(folder: Path | None) -> DiskCheck:
    disk = shutil.disk_usage(folder if folder is not None and folder.is_dir() else Path.cwd())
    percent = round(100 * disk.used / disk.total, 1) if disk.total else 0.0
    return DiskCheck(
        status="degraded" if percent >= HIGH_PERCENT else "healthy",
        total_gb=round(disk.total / GIB, 2),
        free_gb=round(disk.free / GIB, 2),
        percent=percent,
    )
