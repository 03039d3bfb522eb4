"""A forecasting worker's process: one device, and models on it that one thread runs."""

from collections.abc import Callable
from typing import Any, Final

import torch

from kronos_client.contract.worker_status import ForecastWorkerStatus, RunningJob
from kronos_model.devices.cores import intra_op_threads
from kronos_model.devices.resolution import describe_device, resolve_device
from kronos_model.engine.reports import EngineLoad
from worker.inference.capacity import Capacity, max_held_jobs
from worker.inference.host import Host
from worker.inference.isolation import Isolation
from worker.inference.model_loader import max_jobs_on
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

    metrics: WorkerMetrics

    def __init__(
        self, settings: WorkerSettings, node: str, *, on_engine_death: Callable[[], None] = lambda: None
    ) -> None:
        self.device, self.device_warning = resolve_device(settings.device)
        max_jobs = max_jobs_on(self.device, settings)
        self.capacity = Capacity(self._known_loads, max_held_jobs(max_jobs))
        metrics = WorkerMetrics(
            lambda: self.host.engine_thread.loads,
            lambda: len(self.host.engine_thread.runs),
            lambda: {} if self.device.type == "cpu" else {str(self.device): describe_device(self.device)},
        )
        self.host = Host(
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
            self.host.load()
            self.device, self.device_warning = self.host.device, self.host.device_warning
            own, dtype = self.host.models.own, self.settings.dtype
            self.serve_metrics(model=own.name, dtype=dtype, engine=own.engine_kind)
        except BaseException:  # this worker will never be ready
            self._heartbeat.withdraw()
            raise

    def _known_loads(self) -> list[EngineLoad]:
        """The engines' loads. While a step seems to hang, they are unknown, and no job is taken."""
        return [] if self.host.watchdog.is_stalled else list(self.host.engine_thread.loads.values())

    def _hello(self) -> dict[str, Any]:
        """What the isolated process needs to give the same results as this process."""
        host = self.host
        return {
            "node": host.node,
            "device": str(host.device),
            "device_warning": host.device_warning,
            "num_threads": host.num_threads,
            "engines": dict(host.engines),
        }

    def _die(self) -> None:
        self.is_dead = True
        self._on_engine_death()

    def status(self) -> ForecastWorkerStatus:
        host, runs = self.host, self.host.engine_thread.runs
        models = host.models if host.is_loaded else None
        served = models.own if models else None
        loads = host.engine_thread.loads.values()
        facts = self._facts("torch", "celery", "kombu", "redis", "numpy")
        if host.watchdog.is_stalled:
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
            threads=host.num_threads,
        )

    def stop(self) -> None:
        self.isolation.stop()
        self.host.stop()
        super().stop()

    def _is_alive(self) -> bool:
        """Whether the engines run, or may still start."""
        if not self.host.is_loaded or self.host.engine_thread.is_alive:
            return True
        self.state = "draining"
        return False
