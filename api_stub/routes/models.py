"""Which models jobs may name, and loading one before they do."""

import asyncio
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from celery import Celery
from fastapi import APIRouter, Depends
from fastapi.responses import Response
from pydantic import BaseModel, Field

from api_stub.backend import Backend, BackendDependency
from api_stub.routes.documented import json_only
from api_stub.routes.job_views import JobProblem, Json
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import Device
from kronos_client.contract.names import LOAD_MODEL_COMMAND, MAX_ID_CHARS
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus
from kronos_client.core.reachable import reachable
from kronos_client.redis.routing import queue_for
from kronos_client.registry.model_registry import DamagedModel, ModelRegistry
from kronos_model.errors import CheckpointError

router = APIRouter(prefix="/v1/models", tags=["models"], dependencies=[Depends(json_only)])

ANSWER_S: Final = 3.0
"""That workers have to answer one question."""
ASK_INTERVALS_S: Final = (0.05, 1.0)
"""Between two questions to a worker that still loads: at first, and at most."""


class ModelView(BaseModel):
    """A model that a job's ``model`` may name as ``id``."""

    id: str = Field(examples=["kronos-tiny", "crypto-hourly@3"])
    kind: Literal["own", "further", "registered"] = Field(
        description="a worker's own, one of KRONOS_MODELS, or one that finetuning registered"
    )
    loaded_by: list[str] = Field(default=[], description="workers that hold it")
    metadata: dict[str, Any] | None = Field(
        default=None, description="of a registered one: parent, metrics, …"
    )
    damaged: str | None = Field(default=None, description="why it cannot be used")


class ModelsView(BaseModel):
    """All that are known here."""

    models: list[ModelView]


class LoadRequest(BaseModel):
    """Which model is to be loaded, and by which workers."""

    model: Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)] = Field(examples=["kronos-tiny"])
    device: Device = Field(default="auto", description="of the workers that are to load it; auto for all")


class LoadedBy(BaseModel):
    """A worker's answer."""

    worker: str
    state: Literal["ready", "loading", "failed", "silent"] = Field(
        description="silent: no answer came in time"
    )
    device: str | None = None
    device_warning: str | None = None
    error: JobProblem | None = None


class LoadView(BaseModel):
    """All workers' answers."""

    model: str
    workers: list[LoadedBy]


@router.get("", response_model=ModelsView)
async def models(backend: BackendDependency) -> Response:
    """The workers' own models, further ones, and those that finetuning registered."""
    workers = (await backend.pool()).workers
    registered = await backend.call(_registered, backend)
    return Json(ModelsView(models=list(_known(workers, backend, registered).values())))


@router.post(
    "/load",
    response_model=LoadView,
    responses={
        202: {"model": LoadView, "description": "some are still loading it, or did not answer; ask again"}
    },
)
async def load(request: LoadRequest, backend: BackendDependency) -> Response:
    """Have workers load a model now, so that the first job that names it need not wait for that.

    Where no worker can, the problem is that of the first one that says why, or TIMEOUT where none answers.
    """
    workers = [worker for worker in (await backend.pool()).workers if _is_meant(worker, request.device)]
    if not workers:
        raise JobError(
            ErrorCode.MODEL_CAPACITY,
            "no worker of that kind is ready; start one, or wait until one is",
            "device",
        )
    answers = await _ask(backend, request.model, [worker.node for worker in workers])
    told = [_loaded_by(worker, answers.get(worker.node)) for worker in workers]
    states = {one.state for one in told}
    if not states & {"ready", "loading"}:
        raise _nobody(told)
    return Json(LoadView(model=request.model, workers=told), 202 if states & {"loading", "silent"} else 200)


def _nobody(told: Sequence[LoadedBy]) -> JobError:
    """Why none has the model: by the first one that says so."""
    names = [one.worker for one in told]
    first = next((one.error for one in told if one.error is not None), None)
    if first is None:
        message = "no worker answered in time; see whether they are alive (/v1/workers), and ask again"
        return JobError(ErrorCode.TIMEOUT, message, None, {"workers": names})
    return JobError(first.code, first.message, first.field, first.details | {"workers": names})


async def _ask(backend: Backend, model: str, nodes: list[str]) -> dict[str, dict[str, Any]]:
    """Each worker's answer, asked again while one still loads, up to the time that requests wait."""
    deadline = time.monotonic() + backend.settings.api_wait_s
    ask = uuid.uuid4().hex
    answers: dict[str, dict[str, Any]] = {}
    pause_s, longest_s = ASK_INTERVALS_S
    while True:
        missing = [node for node in nodes if answers.get(node, {}).get("state", "loading") == "loading"]
        answers |= await backend.call(_broadcast, backend.dispatcher.app, model, ask, missing)
        is_done = all(answers.get(node, {}).get("state") in ("ready", "failed") for node in nodes)
        if is_done or backend.is_released or time.monotonic() + pause_s > deadline:
            return answers
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)


def _broadcast(app: Celery, model: str, ask: str, nodes: list[str]) -> dict[str, dict[str, Any]]:
    """One question to these workers; blocks."""
    with reachable():
        replies = app.control.broadcast(
            LOAD_MODEL_COMMAND,
            arguments={"model": model, "ask": ask},
            destination=nodes,
            reply=True,
            timeout=ANSWER_S,
            limit=len(nodes),
        )
    return {
        node: answer
        for reply in replies or []
        for node, answer in reply.items()
        if isinstance(answer, dict) and answer.get("state") in ("ready", "loading", "failed")
    }


def _is_meant(worker: AnyWorkerStatus, device: str) -> bool:
    """Whether it serves forecasts on such a device; a prefork child hears of its parent only."""
    if not worker.is_ready or not isinstance(worker, ForecastWorkerStatus):
        return False
    return device == "auto" or worker.queue == queue_for(device)


def _loaded_by(worker: AnyWorkerStatus, answer: Mapping[str, Any] | None) -> LoadedBy:
    if answer is None:
        return LoadedBy(worker=worker.node, state="silent")
    error = answer.get("error")
    return LoadedBy(
        worker=worker.node,
        state=answer["state"],
        device=answer.get("device"),
        device_warning=answer.get("device_warning"),
        error=None if error is None else JobProblem.model_validate(error),
    )


def _registered(backend: Backend) -> list[ModelView]:
    """Those in the folder; blocks."""
    folder = backend.settings.model_folder
    if folder is None:
        return []
    try:
        found = ModelRegistry(folder).list()
    except CheckpointError as error:
        raise JobError.from_kronos(error) from None
    return [
        ModelView(id=model.reference, kind="registered", damaged=model.reason)
        if isinstance(model, DamagedModel)
        else ModelView(
            id=model.reference,
            kind="registered",
            metadata=model.metadata.model_dump(mode="json", exclude={"sha256"}),
        )
        for model in found
    ]


def _known(
    workers: Iterable[AnyWorkerStatus], backend: Backend, registered: Iterable[ModelView]
) -> dict[str, ModelView]:
    """By id."""
    known: dict[str, ModelView] = {}
    forecasting = [worker for worker in workers if isinstance(worker, ForecastWorkerStatus)]
    for worker in forecasting:
        for place, model in enumerate(worker.models):
            known.setdefault(model.id, ModelView(id=model.id, kind="further" if place else "own"))
    for name in backend.settings.further_models:
        known.setdefault(name, ModelView(id=name, kind="further"))
    for view in registered:
        known[view.id] = view
    for worker in forecasting:
        for model in worker.models:
            if model.state == "ready":
                known[model.id].loaded_by.append(worker.node)
    return known
