"""Tools about backtests, which a worker for finetuning runs, and about models, workers and any job."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult
from pydantic import Field
from pydantic_core import to_json
from redis import Redis

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import is_job_id
from kronos_client.contract.worker_status import ForecastWorkerStatus
from kronos_client.core.job import data_job
from kronos_client.core.job_facts import JobFacts, read_job
from kronos_client.core.kinds import BACKTEST
from kronos_client.mcp import service as base
from kronos_client.mcp.service import MAX_LISTED, READS, STARTS, AnyContext, answer
from kronos_client.redis.connection import reachable
from kronos_client.registry.model_registry import DamagedModel, ModelRegistry
from kronos_model.checkpoints.names import caution_about

REPORT: Final = "kronos://backtests/{job_id}/report"
MODEL: Final = {"id", "revision", "state", "lookback", "engine"}
WORKER: Final = {"node", "role", "queue", "device", "jobs_done", "jobs_failed"}
Files = Annotated[
    list[str], Field(min_length=1, max_length=100, description="CSV or Parquet files of candles")
]


def add(server: MCPServer[Any], service: base.Service) -> None:
    """Add the tools to a server."""

    @server.tool(**STARTS)
    async def run_backtest(
        context: AnyContext,
        files: Files,
        horizon: Annotated[int, Field(ge=1, description="bars to forecast in each window")] = 24,
        windows: Annotated[int, Field(ge=1, description="the most of each instrument")] = 40,
        samples: Annotated[int, Field(ge=2, description="paths of each forecast")] = 30,
        lookback: Annotated[int | None, Field(ge=1, description="bars that the models read")] = None,
        models: Annotated[list[str] | None, Field(min_length=1, description="of list_models")] = None,
    ) -> CallToolResult:
        """Start a backtest: forecast the past of these files, and compare with what followed.

        It answers the job's id at once and takes minutes. get_backtest has its progress and its verdict.
        """
        scope, core = service.allow(context, "train"), service.core
        given: Any = {"horizon": horizon, "windows": windows, "samples": samples}
        given |= {"lookback": lookback, "models": models}
        make = partial(data_job, await service.data(files), given, None, core.settings)
        job, queue = await core.send(make, may_stay=True, scope=scope)
        text = "Call get_backtest with this job_id for its progress and its verdict."
        return answer({"job_id": job.id, "state": "queued", "queue": queue, "next": text})

    @server.tool(**READS)
    async def get_backtest(context: AnyContext, job_id: str) -> CallToolResult:
        """A backtest's progress, or its verdict on each model against naive forecasts, with its cautions."""
        service.allow(context, "train")
        stored = await service.core.events.read(job_id)
        result = BACKTEST.result_of(stored)
        if result is None:
            progress = BACKTEST.state_of(stored).progress.model_dump(exclude_none=True)
            return base.unfinished(job_id, stored, "get_backtest", progress=progress)
        report, uri = result.report, REPORT.format(job_id=job_id)
        verdict = {name: model["verdict"] for name, model in report["models"].items()}
        content = {"job_id": job_id, "state": "done", "windows": report["num_windows"], "verdict": verdict}
        content |= {"remarks": report["remarks"], "left_out": report["left_out"], "report": uri}
        return answer(content, uri, "application/json")

    @server.resource(REPORT, mime_type="application/json")
    async def backtest_report(job_id: str, context: AnyContext) -> str:
        """The whole report of a backtest: all scores, by horizon and by instrument."""
        service.allow(context, "train")
        return to_json((await base.finished(service, BACKTEST, job_id)).report).decode()

    @server.tool(**READS)
    async def list_models(context: AnyContext) -> CallToolResult:
        """The models that a forecast or a backtest may name, with the caution about each."""
        service.allow(context)
        models: dict[str, dict[str, Any]] = {}
        for worker in await service.core.call(service.core.dispatcher.workers):
            for model in worker.models if isinstance(worker, ForecastWorkerStatus) else ():
                shown = model.model_dump(include=MODEL, exclude_none=True)
                models[model.id] = shown | {"caution": caution_about(model.id, {})}
        for name, shown in (await service.core.call(_registered, service.model_folder)).items():
            models[name] = models.get(name, {}) | shown
        return answer({"models": list(models.values())[:MAX_LISTED], "total": len(models)})

    @server.tool(**READS)
    async def list_workers(context: AnyContext) -> CallToolResult:
        """The live workers: their devices, states and warnings."""
        service.allow(context)
        workers = await service.core.call(service.core.dispatcher.workers)
        more = [{"state": each.condition, "warnings": each.all_warnings()} for each in workers]
        shown = [each.model_dump(include=WORKER) | known for each, known in zip(workers, more, strict=True)]
        none = None if workers else "No worker is alive: start one with `kronos worker` or `kronos up`."
        return answer({"workers": shown[:MAX_LISTED], "total": len(workers), "next": none})

    @server.tool(**READS)
    async def explain_job(context: AnyContext, job_id: str) -> CallToolResult:
        """Where a job is: its attempts, what it waits for, how long it takes, its error, what to do next."""
        service.allow(context, "predict", "train")
        if not is_job_id(job_id):
            raise JobError(ErrorCode.BAD_VALUE, "this cannot be a job's id: copy it from an answer", "job_id")
        facts = await service.core.call(_facts, service.redis, job_id)
        return answer(facts.model_dump())


def _facts(redis: Redis, job_id: str) -> JobFacts:
    with reachable(job_id):
        return read_job(redis, job_id, reads_dead=False)


def _registered(folder: Path | None) -> dict[str, dict[str, Any]]:
    """The registered models by their references, with the caution about each. Blocks."""
    models: dict[str, dict[str, Any]] = {}
    for model in [] if folder is None else ModelRegistry(folder).list():
        caution = f"damaged: {model.reason}" if isinstance(model, DamagedModel) else None
        if not isinstance(model, DamagedModel):
            caution = caution_about(model.reference, model.metadata.model_dump(mode="json"))
        models[model.reference] = {"id": model.reference, "caution": caution}
    return models
