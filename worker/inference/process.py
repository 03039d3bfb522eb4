"""One forecasting worker's process: one device, and models on it that one thread runs."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

import torch
from redis import Redis

from kronos_client.contract.worker_status import ForecastWorkerStatus, RunningJob, State
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import JobStore
from kronos_client.redis.routing import queue_for
from kronos_model.devices.cores import intra_op_threads
from kronos_model.devices.resolution import describe_device, resolve_device
from kronos_model.engine.engine import EngineLoad
from worker.broker.claims import Claims
from worker.broker.result_backend import CodedRedisBackend
from worker.config import UNACKED_INDEX_KEYS
from worker.inference.capacity import Capacity
from worker.inference.engine_thread import EngineObserver
from worker.inference.host import Host
from worker.inference.isolation.isolation import Isolation
from worker.inference.model_loader import LoadedModel
from worker.monitoring.heartbeat import Heartbeat, facts_of_process
from worker.monitoring.metrics import WorkerMetrics
from worker.settings import WorkerSettings

log = logging.getLogger(__name__)

MAX_JOBS_SHOWN: Final = 16
"""Running jobs in an announcement, which must stay small."""


class WorkerProcess(Host):
    """A forecasting worker's models, claims, metrics and announcement.

    Args:
        observers: Observe the engines, after the metrics.
        on_engine_death: Called to end the process, which can no longer compute.

    Raises:
        KronosError: The device cannot be used.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        node: str,
        *,
        observers: Sequence[EngineObserver] = (),
        on_engine_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.metrics = WorkerMetrics(lambda: self.engine_thread.loads, lambda: self.engine_thread.num_jobs)
        # While a step seems to hang, the load is unknown, and no job is taken.
        self.capacity = Capacity(
            lambda: () if self.watchdog.is_stalled else self.engine_thread.loads.values()
        )
        super().__init__(
            settings,
            node,
            *resolve_device(settings.device),
            observers=[self.metrics, self.capacity, *observers],
            on_admission=self.capacity.admitted,
            on_stall=lambda: self._heartbeat.announce_soon(),
            on_death=self._die,
        )
        self.state: State = "loading"
        self.redis: Redis = connect(settings.redis_url.get_secret_value())
        taken_key = UNACKED_INDEX_KEYS[settings.role]
        self.job_store = JobStore(self.redis, settings.result_ttl_s, taken_key, self._note_repeated)
        self.claims = Claims(self.job_store, float(settings.visibility_timeout_s))
        self.isolation = Isolation(settings.max_jobs, self._hello, lambda: self.state == "draining")
        self.is_dead = False
        self._on_engine_death = on_engine_death
        self._started = time.time()
        self._heartbeat = Heartbeat(self.redis, node, self.status, self._is_alive)

    @property
    def queue(self) -> str:
        return queue_for(self.device.type)

    @property
    def served(self) -> LoadedModel:
        """The worker's own model, once it is loaded."""
        return self.models.own

    def start(self, num_processes: int = 1) -> None:
        """Announce the worker, load its model and start the engines. ``num_processes`` share the cores."""
        self.num_threads = intra_op_threads(self.settings.threads, num_processes) or torch.get_num_threads()
        CodedRedisBackend.runs_here = staticmethod(self.claims.has)  # type: ignore[method-assign]
        CodedRedisBackend.on_repeated = staticmethod(self._note_repeated)  # type: ignore[method-assign]
        self._heartbeat.start()
        try:
            self.load()
            model, dtype = self.models.names[0], self.settings.dtype
            self.metrics.describe(device=str(self.device), model=model, queue=self.queue, dtype=dtype)
            if self.settings.metrics_port is not None:
                self.metrics.serve(self.settings.metrics_host, self.settings.metrics_port)
        except BaseException:  # this worker will never be ready
            self._heartbeat.withdraw()
            raise

    def ready(self) -> None:
        """Announce, once, that this worker takes jobs. Called at each connection to the broker."""
        if self.state != "loading":
            return
        self.state = "ready"
        self._heartbeat.announce()
        log.info(
            "ready: device=%s warning=%s model=%s queue=%s",
            self.device,
            self.device_warning,
            self.served.info.id,
            self.queue,
        )

    def _hello(self) -> dict[str, Any]:
        """What the isolated process needs to give the same results as this process."""
        return {
            "node": self.node,
            "device": str(self.device),
            "device_warning": self.device_warning,
            "num_threads": self.num_threads,
        }

    def _note_repeated(self, tag: str) -> None:
        """Count a lost claim, only once."""
        if self.claims.take_away(tag):
            self.metrics.jobs_repeated.inc()

    def _die(self) -> None:
        self.is_dead = True
        self._on_engine_death()

    def status(self) -> ForecastWorkerStatus:
        """The worker's status, as it is announced."""
        models = self.models if self.is_loaded else None
        served = models.own if models else None
        load = self.engine_thread.load if models else EngineLoad(0, 0, 0)
        return ForecastWorkerStatus(
            node=self.node,
            state="draining" if self.watchdog.is_stalled else self.state,
            role="forecast",
            queue=self.queue,
            requested_device=self.settings.device,
            device=str(self.device),
            device_warning=self.device_warning,
            device_description=describe_device(self.device).as_dict(),
            model=served.info if served else None,
            num_parameters=served.num_parameters if served else None,
            max_context=served.max_context if served else None,
            load_s=served.load_s if served else None,
            jobs_done=self.metrics.num_done,
            jobs_failed=self.metrics.num_failed,
            jobs_running=tuple(
                RunningJob(id=run.job_id, bars_done=run.num_bars_done, bars_total=run.num_bars_total)
                for run in self.engine_thread.runs[:MAX_JOBS_SHOWN]
            ),
            num_jobs_running=self.engine_thread.num_jobs,
            sequences_running=load.running,
            sequences_waiting=load.waiting,
            slots=load.slots,
            **asdict(self.metrics.window.recently()),
            models=models.status() if models else (),
            max_models=self.settings.max_models,
            dtype=self.settings.dtype,
            threads=self.num_threads,
            **facts_of_process(self._started, "torch", "celery", "kombu", "redis", "numpy"),
        )

    def drain(self) -> None:
        """Announce that this worker takes no more jobs. Safe in a signal handler."""
        self.state = "draining"
        self._heartbeat.announce_soon()

    def stop(self) -> None:
        """End the engines and remove the announcement."""
        self.isolation.stop()
        super().stop()
        self._heartbeat.withdraw()

    def _is_alive(self) -> bool:
        """Whether the engines run, or may still start."""
        if not self.is_loaded or self.engine_thread.is_alive:
            return True
        self.state = "draining"
        return False
