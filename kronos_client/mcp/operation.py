"""Tools about models, workers, and one job."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from mcp_types import CallToolResult

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import is_job_id
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus
from kronos_client.core.job_facts import next_step, read_job
from kronos_client.mcp.service import AnyContext, Subject, Tool, answer
from kronos_client.redis.connection import reachable
from kronos_client.registry.model_registry import DamagedModel, ModelRegistry
from kronos_model.checkpoints.names import caution_about
from kronos_model.errors import CheckpointError

MAX_LISTED: Final = 100
MODEL_FIELDS: Final = {"id", "revision", "state", "max_context", "lookback", "engine"}
WORKER_FIELDS: Final = {
    "node",
    "state",
    "role",
    "queue",
    "device",
    "device_warning",
    "jobs_done",
    "jobs_failed",
}


class Operation(Subject):
    """What there is, and where a job is."""

    @property
    def tools(self) -> Sequence[Tool]:
        return self.list_models, self.list_workers, self.explain_job

    async def list_models(self, context: AnyContext) -> CallToolResult:
        """The models that a forecast or a backtest may name, with the caution about each."""
        self.service.allow(context)
        models: dict[str, dict[str, Any]] = {}
        for worker in await self._workers():
            for model in worker.models if isinstance(worker, ForecastWorkerStatus) else ():
                shown = model.model_dump(include=MODEL_FIELDS, exclude_none=True)
                models.setdefault(model.id, shown | {"caution": caution_about(model.id, {})})
        registered = await self.service.core.call(self._registered)
        for name, shown in registered.items():
            models[name] = models.get(name, {}) | shown
        return answer({"models": list(models.values())[:MAX_LISTED], "total": len(models)})

    async def list_workers(self, context: AnyContext) -> CallToolResult:
        """The live workers: their devices, states and warnings."""
        self.service.allow(context)
        workers = await self._workers()
        shown = [
            worker.model_dump(include=WORKER_FIELDS, exclude_none=True)
            | {"condition": worker.condition, "warnings": worker.all_warnings()}
            for worker in workers[:MAX_LISTED]
        ]
        none = None if workers else "No worker is alive: start one with `kronos worker` or `kronos up`."
        return answer({"workers": shown, "total": len(workers), "next": none})

    async def explain_job(self, context: AnyContext, job_id: str) -> CallToolResult:
        """Where a job is: its attempts, what it waits for, how long it takes, its error, what to do next."""
        self.service.allow(context, "predict", "train")
        if not is_job_id(job_id):
            raise JobError(ErrorCode.BAD_VALUE, "this cannot be a job's id: copy it from an answer", "job_id")
        facts = await self.service.core.call(self._facts, job_id)
        return answer(asdict(facts) | {"next": next_step(facts)})

    async def _workers(self) -> Sequence[AnyWorkerStatus]:
        workers: Sequence[AnyWorkerStatus] = await self.service.core.call(
            self.service.core.dispatcher.workers
        )
        return workers

    def _facts(self, job_id: str) -> Any:
        with reachable(job_id):
            return read_job(self.service.redis, job_id, reads_dead=False)

    def _registered(self) -> Mapping[str, dict[str, Any]]:
        """The registered models by their references. Blocks."""
        if self.service.model_folder is None:
            return {}
        registry = ModelRegistry(self.service.model_folder)
        try:
            found = registry.list()
        except CheckpointError as error:
            raise JobError.from_kronos(error) from None
        current, models = registry.current(found), {}
        for model in found:
            shown: dict[str, Any] = {"id": model.reference, "registered": True}
            if isinstance(model, DamagedModel):
                shown["damaged"] = model.reason
            else:
                metadata = model.metadata.model_dump(mode="json")
                shown |= {"is_what_the_name_means": current.get(model.name) == model.version}
                shown |= {
                    "lookback": metadata.get("lookback"),
                    "caution": caution_about(model.reference, metadata),
                }
            models[model.reference] = shown
        return models
