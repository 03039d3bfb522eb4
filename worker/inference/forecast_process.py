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
from worker.inference.isolation.isolation import Isolation
from worker.inference.model_loader import LoadedModel, max_jobs_on
from worker.monitoring.metrics import WorkerMetrics
from worker.process import WorkerProcess
from worker.settings import WorkerSettings

MAX_JOBS_SHOWN: Final = 16
"""Running jobs in an announcement, which must stay small."""


class ForecastProcess(Host, WorkerProcess):
    """A worker's process that computes forecasts. ``on_engine_death`` is called to end it.

    Raises:
        KronosError: The device cannot be used.
    """

    metrics: WorkerMetrics

    def __init__(
        self, settings: WorkerSettings, node: str, *, on_engine_death: Callable[[], None] = lambda: None
    ) -> None:
        self.metrics = WorkerMetrics(
            lambda: self.engine_thread.loads,
            lambda: self.engine_thread.num_jobs,
            lambda: {} if self.device.type == "cpu" else {str(self.device): describe_device(self.device)},
        )
        device, device_warning = resolve_device(settings.device)
        max_jobs = max_jobs_on(device, settings)
        # While a step seems to hang, the load is unknown, and no job is taken.
        self.capacity = Capacity(
            lambda: () if self.watchdog.is_stalled else self.engine_thread.loads.values(),
            max_held_jobs(max_jobs),
        )
        Host.__init__(
            self,
            settings,
            node,
            device,
            device_warning,
            observers=[self.metrics, self.capacity],
            on_admission=self.capacity.admitted,
            on_stall=lambda: self._heartbeat.announce_soon(),
            on_death=self._die,
        )
        WorkerProcess.__init__(self, settings, node, self.metrics)
        self.isolation = Isolation(max_jobs, self._hello, lambda: self.state == "draining")
        self._on_engine_death = on_engine_death

    @property
    def served(self) -> LoadedModel:
        """The worker's own model, once it is loaded."""
        return self.models.own

    def start(self) -> None:
        self.num_threads = intra_op_threads(self.settings.threads, 1) or torch.get_num_threads()
        super().start()
        try:
            self.load()
            self.serve_metrics(model=self.models.names[0], dtype=self.settings.dtype)
        except BaseException:  # this worker will never be ready
            self._heartbeat.withdraw()
            raise

    def _hello(self) -> dict[str, Any]:
        """What the isolated process needs to give the same results as this process."""
        return {
            "node": self.node,
            "device": str(self.device),
            "device_warning": self.device_warning,
            "num_threads": self.num_threads,
        }

    def _die(self) -> None:
        self.is_dead = True
        self._on_engine_death()

    def status(self) -> ForecastWorkerStatus:
        models = self.models if self.is_loaded else None
        served = models.own if models else None
        load = self.engine_thread.load if models else EngineLoad(0, 0, 0)
        facts = self._facts("torch", "celery", "kombu", "redis", "numpy")
        if self.watchdog.is_stalled:
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
                for run in self.engine_thread.runs[:MAX_JOBS_SHOWN]
            ),
            num_jobs_running=self.engine_thread.num_jobs,
            sequences_running=load.running,
            sequences_waiting=load.waiting,
            slots=load.slots,
            **self.metrics.recently(),
            models=models.status() if models else (),
            max_models=self.settings.max_models,
            limits=self.limits.model_dump(exclude={"max_pred_len"}),
            dtype=self.settings.dtype,
            threads=self.num_threads,
        )

    def stop(self) -> None:
        self.isolation.stop()
        Host.stop(self)
        WorkerProcess.stop(self)

    def _is_alive(self) -> bool:
        """Whether the engines run, or may still start."""
        if not self.is_loaded or self.engine_thread.is_alive:
            return True
        self.state = "draining"
        return False
