"""Routes of models: those that jobs may name, and loading one in advance."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Response
from fastapi import Path as InPath
from pydantic import BaseModel, Field

from api_stub.backend import Backend, BackendDependency
from api_stub.job_state import JobProblem
from api_stub.keys import needs
from api_stub.problems import HttpCode, HttpError
from api_stub.routes.documented import json_only
from api_stub.routes.query import MAX_LIMIT, NEXT, Cursor, Limit, page_of
from api_stub.settings import ApiSettings
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import Device
from kronos_client.contract.names import LOAD_MODEL_COMMAND, MAX_ID_CHARS
from kronos_client.registry.model_registry import DamagedModel, ModelRegistry
from kronos_client.registry.registered_model import RUNS
from kronos_model.checkpoints.names import NO_BACKTEST, bundled_names, caution_about
from kronos_model.checkpoints.source import read_json, read_metadata
from kronos_model.errors import CheckpointError, DiskFull, KronosError

router = APIRouter(prefix="/v1/models", tags=["models"], dependencies=[Depends(json_only)])

ANSWER_S: Final = 3.0
"""Seconds that workers have to answer a request."""
ASK_INTERVALS_S: Final = (0.05, 1.0)
"""Seconds between two requests to a worker that is still loading: at first, and at most."""
NO_ANSWER: Final = JobProblem(
    code=ErrorCode.TIMEOUT, message="no worker answered in time; check /v1/workers, and try again"
)


class ModelView(BaseModel):
    """A model. A job names it by ``id`` in its ``model``."""

    id: str = Field(examples=["kronos-tiny", "crypto-hourly@3"])
    kind: Literal["own", "further", "registered"] = Field(
        description="a worker's own model, one of KRONOS_MODELS, or one registered by finetuning"
    )
    loaded_by: list[str] = Field(default=[], description="workers that have loaded it")
    metadata: dict[str, Any] | None = Field(
        default=None, description="of a registered model: parent, metrics, …"
    )
    current: bool = Field(
        default=False, description="whether the name of a registered model, without a version, means it"
    )
    damaged: str | None = Field(default=None, description="why it cannot be used")
    lookback: int | None = Field(default=None, description="most bars of lookback in its training, if known")
    min_lookback: int | None = Field(default=None, description="the fewest; without them always the most")
    pred_len: int | None = Field(default=None, description="bars after the lookback in its training")
    caution: str | None = Field(
        default=None, description="that it is only for trying the service, or that no backtest is kept here"
    )


class ModelsView(BaseModel):
    """A page of the known models."""

    models: list[ModelView]
    next: str | None = Field(description=NEXT)


class LoadRequest(BaseModel):
    """The model to load, and the workers that must load it."""

    model: Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)] = Field(examples=["kronos-tiny"])
    device: Device = Field(
        default="auto", description="device of the workers that must load it; auto means all"
    )


class LoadedBy(BaseModel):
    """A worker's answer."""

    worker: str
    state: Literal["ready", "loading", "failed", "silent"] = Field(
        description="silent: the worker did not answer in time"
    )
    device: str | None = None
    device_warning: str | None = None
    error: JobProblem | None = None


class LoadView(BaseModel):
    """All workers' answers."""

    model: str
    workers: list[LoadedBy]


@router.get("")
async def list_models(
    backend: BackendDependency, limit: Limit = MAX_LIMIT, cursor: Cursor = None
) -> ModelsView:
    """The workers' own models, the further ones, and those registered by finetuning."""
    workers = (await backend.pool()).forecasting
    known: dict[str, ModelView] = {}
    for worker in workers:
        for place, model in enumerate(worker.models):
            view = ModelView(id=model.id, kind="further" if place else "own")
            view.lookback, view.min_lookback = model.lookback, model.min_lookback
            known.setdefault(model.id, view)
    for name in backend.settings.further_models:
        known.setdefault(name, ModelView(id=name, kind="further"))
    known |= {view.id: view for view in await backend.call(registered_models, backend.settings.model_folder)}
    for worker in workers:
        for model in worker.models:
            if model.state == "ready":
                known[model.id].loaded_by.append(worker.node)
    tested = await backend.call(_tested_models, backend.settings.model_folder)
    for view in known.values():
        untested = None if view.id in tested else NO_BACKTEST
        view.caution = caution_about(view.id, view.metadata or {}) or untested
        for name, bars in _trained_on(view).items():
            setattr(view, name, bars)
    page, following = page_of(list(known.values()), lambda model: model.id, limit, cursor)
    return ModelsView(models=page, next=following)


@router.delete("/{model_id:path}", status_code=204, dependencies=[needs("admin")])
async def delete_model(
    model_id: Annotated[str, InPath(max_length=MAX_ID_CHARS, examples=["crypto-hourly@3"])],
    backend: BackendDependency,
) -> None:
    """Delete one version of a registered model. Workers that have loaded it serve it until they unload it."""
    await backend.call(_delete, backend.settings.model_folder, model_id)


@router.post(
    "/load",
    dependencies=[needs("admin")],
    responses={
        202: {
            "model": LoadView,
            "description": "some workers are still loading it or did not answer; ask again",
        }
    },
)
async def load_model(request: LoadRequest, backend: BackendDependency, response: Response) -> LoadView:
    """Load a model in the workers now, so that the first job with it does not wait.

    If no worker can load it, the problem is the first one reported, or TIMEOUT if no worker answers.
    """
    ready = [worker for worker in (await backend.pool()).forecasting if worker.is_ready]
    queue = None if request.device == "auto" else backend.settings.queue_names.on_device(request.device)
    nodes = [worker.node for worker in ready if queue in (None, worker.queue)]
    if not nodes:
        raise JobError(
            ErrorCode.MODEL_CAPACITY,
            "no worker with that device is ready; start one, or wait until one is ready",
            "device",
        )
    answers = await _ask(backend, request.model, nodes)
    views = [
        LoadedBy.model_validate({"state": "silent", **answers.get(node, {}), "worker": node})
        for node in nodes
    ]
    states = {view.state for view in views}
    if not states & {"ready", "loading"}:
        first = next((view.error for view in views if view.error is not None), NO_ANSWER)
        raise JobError(first.code, first.message, first.field, first.details | {"workers": nodes})
    response.status_code = 202 if states & {"loading", "silent"} else 200
    return LoadView(model=request.model, workers=views)


async def _ask(backend: Backend, model: str, nodes: list[str]) -> dict[str, dict[str, Any]]:
    """Each worker's answer. Workers that are still loading are asked again until the request's time is up."""
    deadline = time.monotonic() + backend.settings.api_wait_s
    ask = uuid.uuid4().hex
    answers: dict[str, dict[str, Any]] = {}
    pause_s, longest_s = ASK_INTERVALS_S
    asked = nodes
    while True:
        answers |= await backend.ask(_broadcast, backend.settings, model, ask, asked)
        asked = [node for node in nodes if answers.get(node, {}).get("state") not in ("ready", "failed")]
        if not asked or backend.events.is_released or time.monotonic() + pause_s > deadline:
            return answers
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)


def _broadcast(settings: ApiSettings, model: str, ask: str, nodes: list[str]) -> dict[str, dict[str, Any]]:
    """The answers of these workers to one request. Blocks. Raises ConnectionError."""
    from kombu.exceptions import OperationalError  # nothing else here needs Celery

    from kronos_client.celery_app import make_app

    try:
        with make_app(settings) as app:
            replies = app.control.broadcast(
                LOAD_MODEL_COMMAND,
                arguments={"model": model, "ask": ask},
                destination=nodes,
                reply=True,
                timeout=ANSWER_S,
                limit=len(nodes),
            )
    except OperationalError as error:
        raise ConnectionError(str(error)) from error
    return {
        node: answer
        for reply in replies or []
        for node, answer in reply.items()
        if isinstance(answer, dict) and answer.get("state") in ("ready", "loading", "failed")
    }


bundled_metadata = lru_cache(read_metadata)


def _trained_on(view: ModelView) -> dict[str, int]:
    """The lengths of the windows of a registered or bundled model's training, as far as they are known."""
    metadata = bundled_metadata(view.id) if view.id in bundled_names() else view.metadata or {}
    names = ("lookback", "min_lookback", "pred_len")
    return {name: metadata[name] for name in names if metadata.get(name) is not None}


def _delete(folder: Path | None, model_id: str) -> None:
    """Raises HttpError NOT_FOUND or READ_ONLY. Blocks."""
    try:
        if folder is not None and ModelRegistry(folder).delete(model_id):
            return
    except DiskFull as error:
        raise HttpError(HttpCode.READ_ONLY, error.message) from None
    except KronosError as error:
        raise JobError.from_kronos(error) from None
    raise HttpError(
        HttpCode.NOT_FOUND,
        "no registered model has this id; GET /v1/models has them, such as crypto-hourly@3, and others, "
        "which cannot be deleted",
        "model_id",
    )


def _tested_models(folder: Path | None) -> set[str]:
    """The models of the backtests whose reports are kept. Blocks."""
    reports = [] if folder is None else (folder / RUNS).glob("*/run/report.json")
    return {model for report in reports for model in _models_in(report)}


@lru_cache(maxsize=4096)
def _models_in(report: Path) -> Sequence[str]:
    """The models of a report, which never changes, as jobs name them: with and without their revision."""
    try:
        infos = (read_json(report) or {})["model_info"].values()
        return [name for info in infos for name in (info["id"], f"{info['id']}@{info['revision']}")]
    except (CheckpointError, AttributeError, KeyError, TypeError):  # damaged, or of another program
        return []


def registered_models(folder: Path | None) -> list[ModelView]:
    """The models in the folder. Blocks."""
    if folder is None:
        return []
    registry = ModelRegistry(folder)
    try:
        found = registry.list()
    except CheckpointError as error:
        raise JobError.from_kronos(error) from None
    current = registry.current(found)
    views = []
    for model in found:
        is_current = current.get(model.name) == model.version
        view = ModelView(id=model.reference, kind="registered", current=is_current)
        if isinstance(model, DamagedModel):
            view.damaged = model.reason
        else:
            view.metadata = model.metadata.model_dump(mode="json", exclude={"sha256"})
        views.append(view)
    return views
