"""A forecasting worker's process: one device, and models on it that one thread runs."""

from collections.abc import Callable
from functools import cached_property
from typing import Final

import torch

from kronos_client.contract.worker_status import ForecastWorkerStatus, RunningJob
from kronos_client.feeds.store import FeedStore
from kronos_model.devices.cores import intra_op_threads
from kronos_model.devices.resolution import describe_device, resolve_device
from kronos_model.engine.reports import EngineLoad
from worker.inference.capacity import Capacity, max_held_jobs
from worker.inference.isolation import Isolation
from worker.inference.model_loader import max_jobs_on
from worker.inference.model_server import ModelServer
from worker.monitoring.metrics import WorkerMetrics
from worker.process import WorkerProcess
from worker.settings import WorkerSettings

MAX_JOBS_SHOWN: Final = 16
"""Running jobs in an announcement, which must stay small."""


class ForecastProcess(WorkerProcess):
    """A worker's process that computes forecasts. ``on_engine_death`` is called to end it.

    Raises:
        KronosError: The device cannot be used.
    """

    device: torch.device
    capacity: Capacity
    metrics: WorkerMetrics

    def __init__(
        self, settings: WorkerSettings, node: str, *, on_engine_death: Callable[[], None] = lambda: None
    ) -> None:
        self.device, self.device_warning = resolve_device(settings.device)
        max_jobs = max_jobs_on(self.device, settings)
        self.capacity = Capacity(self._known_loads, max_held_jobs(max_jobs))
        metrics = WorkerMetrics(
            lambda: self.server.engine_thread.loads,
            lambda: len(self.server.engine_thread.runs),
            lambda: {} if self.device.type == "cpu" else {str(self.device): describe_device(self.device)},
        )
        self.server = ModelServer(
            settings,
            node,
            self.device,
            self.device_warning,
            intra_op_threads(settings.threads, 1) or torch.get_num_threads(),
            observers=[metrics, self.capacity],
            on_admission=self.capacity.admitted,
            on_stall=lambda: self._heartbeat.announce_soon(),
            on_death=self._die,
        )
        super().__init__(settings, node, metrics)
        self.limits = settings.limits()
        self.isolation = Isolation(max_jobs, self._hello, lambda: self.state == "draining")
        self._on_engine_death = on_engine_death

    def start(self) -> None:
        super().start()
        try:
            self.server.load()
            self.device, self.device_warning = self.server.device, self.server.device_warning
            own, dtype = self.server.models.own, self.settings.dtype
            self.serve_metrics(model=own.name, dtype=dtype, engine=own.engine_kind)
        except BaseException:  # this worker will never be ready
            self._heartbeat.withdraw()
            raise

    @cached_property
    def feeds(self) -> FeedStore:
        """The feeds of the workers' Redis."""
        return FeedStore.from_settings(self.settings)

    def _known_loads(self) -> list[EngineLoad]:
        """The engines' loads. While a step seems to hang, they are unknown, and no job is taken."""
        return [] if self.server.watchdog.is_stalled else list(self.server.engine_thread.loads.values())

    def _hello(self) -> dict[str, object]:
        """What the isolated process needs to give the same results as this process."""
        server = self.server
        return {
            "node": server.node,
            "device": str(server.device),
            "device_warning": server.device_warning,
            "num_threads": server.num_threads,
            "engines": dict(server.engines),
        }

    def _die(self) -> None:
        self.is_dead = True
        self._on_engine_death()

    def status(self) -> ForecastWorkerStatus:
        server, runs = self.server, self.server.engine_thread.runs
        models = server.models if server.is_loaded else None
        served = models.own if models else None
        loads = server.engine_thread.loads.values()
        facts = self._facts("torch", "celery", "kombu", "redis", "numpy")
        if server.watchdog.is_stalled:
            facts["state"] = "draining"
        return ForecastWorkerStatus(
            **facts,
            device_description=describe_device(self.device).as_dict(),
            model=served.info if served else None,
            num_parameters=served.num_parameters if served else None,
            max_context=served.max_context if served else None,
            load_s=served.load_s if served else None,
            jobs_running=tuple(
                RunningJob(id=run.job_id, bars_done=run.num_bars_done, bars_total=run.num_bars_total)
                for run in runs[:MAX_JOBS_SHOWN]
            ),
            num_jobs_running=len(runs),
            sequences_running=sum(load.running for load in loads),
            sequences_waiting=sum(load.waiting for load in loads),
            slots=sum(load.slots for load in loads),
            **self.metrics.recently(),
            models=models.status() if models else (),
            max_models=self.settings.max_models,
            limits=self.limits.model_dump(exclude={"max_pred_len"}),
            dtype=self.settings.dtype,
            threads=server.num_threads,
        )

    def stop(self) -> None:
        self.isolation.stop()
        self.server.stop()
        super().stop()

    def _is_alive(self) -> bool:
        """Whether the engines run, or may still start."""
        if not self.server.is_loaded or self.server.engine_thread.is_alive:
            return True
        self.state = "draining"
        return False
