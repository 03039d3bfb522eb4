"""One worker process: one resolved device, and models on it that one thread runs."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

import torch
from redis import Redis

from kronos_client.contract.forecast import MAX_COUNT
from kronos_client.contract.jobs import Limits
from kronos_client.contract.worker_status import ForecastWorkerStatus, RunningJob, State
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import JobRecords
from kronos_client.redis.result_backend import CodedRedisBackend
from kronos_client.redis.routing import queue_for
from kronos_model.devices.cores import intra_op_threads
from kronos_model.devices.resolution import describe_device, resolve_device
from kronos_model.engine.engine import EngineLoad
from worker.broker.lease import LeaseKeeper
from worker.inference.cache_entry import ServedModel
from worker.inference.capacity import Capacity
from worker.inference.engine_thread import EngineObserver, EngineThread
from worker.inference.isolation.isolation import Isolation
from worker.inference.job_run import JobRun
from worker.inference.model_cache import ModelCache
from worker.inference.model_loader import Loadable, ModelLoader
from worker.inference.shutdown import end_at_once
from worker.inference.watchdog import Watchdog
from worker.monitoring.heartbeat import Heartbeat, facts_of_process
from worker.monitoring.metrics import WorkerMetrics
from worker.settings import WorkerSettings

log = logging.getLogger(__name__)

MAX_JOBS_TOLD: Final = 16
"""Of those that run; an announcement is to stay small."""


class WorkerProcess:
    """Device, models and engine_thread of this process, and what it tells the world about them.

    ``start`` announces and loads; it raises KronosError where the device or the checkpoint cannot be had, or
    the memory does not hold one sample path.

    Args:
        observers: hear what the engines do.
        on_engine_death: to end the process, which cannot compute any more.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        node: str,
        *,
        observers: Sequence[EngineObserver] = (),
        on_engine_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.node = node
        self.state: State = "loading"
        device, self.device_warning = resolve_device(settings.device)
        self.device = device
        self.redis: Redis = connect(settings.redis_url.get_secret_value())
        self.records = JobRecords(self.redis, settings.result_ttl_s, self._note_repeated)
        self.leases = LeaseKeeper(self.records, float(settings.visibility_timeout_s))
        self.metrics = WorkerMetrics(lambda: self.engine_thread.loads, lambda: self.engine_thread.num_jobs)
        self.watchdog = Watchdog(settings.step_timeout_s, self._hang, lambda: self._heartbeat.tell())
        # While a step seems to hang, no load is told: then no further job is taken.
        self.capacity = Capacity(
            lambda: () if self.watchdog.is_stalled else self.engine_thread.loads.values()
        )
        self.engine_thread = EngineThread(
            [self.metrics, self.capacity, *observers],
            watchdog=self.watchdog,
            on_admission=self.capacity.admitted,
            on_death=self._die,
            on_start=lambda: torch.set_num_threads(self.num_threads),
        )
        self.num_threads = torch.get_num_threads()
        self.isolation = Isolation(settings.max_jobs, self._hello, lambda: self.state == "draining")
        self.is_dead = False
        self._on_engine_death = on_engine_death
        self._models: ModelCache | None = None
        self._started = time.time()
        self._heartbeat = Heartbeat(self.redis, node, self.status, self._is_alive)

    @property
    def queue(self) -> str:
        return queue_for(self.device.type)

    @property
    def models(self) -> ModelCache:
        """The models, once the worker's own is loaded."""
        if self._models is None:
            raise RuntimeError("the model is not loaded yet")
        return self._models

    @property
    def served(self) -> ServedModel:
        """The worker's own model, once it is loaded."""
        return self.models.own

    @property
    def limits(self) -> Limits:
        """What a job may ask of this process, whichever model it names."""
        return self.settings.limits(self.models.max_context or MAX_COUNT)

    def limits_of(self, model: Loadable | None) -> Limits:
        """What a job may ask of one of its models, the own one where None."""
        return self.settings.limits(self.models.max_context_of(model))

    def start(self, num_processes: int = 1) -> None:
        """Announce, load and start the engine; ``num_processes`` share the machine's cores."""
        self.num_threads = intra_op_threads(self.settings.threads, num_processes) or torch.get_num_threads()
        CodedRedisBackend.runs_here = staticmethod(self.leases.has)  # type: ignore[method-assign]
        CodedRedisBackend.on_repeated = staticmethod(self._note_repeated)  # type: ignore[method-assign]
        self._heartbeat.start()
        try:
            self._models = self._load()
        except BaseException:  # whatever it was, this worker is not coming
            self._heartbeat.withdraw()
            raise

    def ready(self) -> None:
        """Jobs are taken from now on; said once, also where the connection is made again."""
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

    def _load(self) -> ModelCache:
        loader = ModelLoader(self.settings, self.device)
        own = loader.load_own()
        if loader.device_warning is not None:
            self.device, self.device_warning = loader.device, loader.device_warning
        self.engine_thread.start()
        self.watchdog.start()
        self._serve_metrics(own.name)
        return ModelCache(
            self.engine_thread,
            loader,
            own,
            self.settings.further_models,
            max_models=self.settings.max_models,
            registry=loader.registry,
        )

    def _serve_metrics(self, model: str) -> None:
        self.metrics.describe(
            device=str(self.device), model=model, queue=self.queue, dtype=self.settings.dtype
        )
        if self.settings.metrics_port is not None:
            self.metrics.serve(self.settings.metrics_host, self.settings.metrics_port)

    def _hang(self, seen_s: float) -> None:
        """Neither the engines' thread nor what it computes can be ended: the process is, as if killed."""
        end_at_once(
            f"an engine hangs: a step took over {seen_s:.0f} s (KRONOS_STEP_TIMEOUT_S). The worker ends now, "
            f"and its jobs are delivered again: {', '.join(self.engine_thread.job_ids)}"
        )

    def _hello(self) -> dict[str, Any]:
        """What the isolation's process must know to give the results that this one would."""
        return {
            "node": self.node,
            "device": str(self.device),
            "device_warning": self.device_warning,
            "num_threads": self.num_threads,
        }

    def _note_repeated(self, token: str) -> None:
        """Count a lease that was lost, once."""
        if self.leases.take_away(token):
            self.metrics.jobs_repeated.inc()

    def _die(self) -> None:
        self.is_dead = True
        self._on_engine_death()

    def status(self) -> ForecastWorkerStatus:
        """Return everything that an operator wants to know."""
        models = self._models
        served = models.own if models else None
        load = self.engine_thread.load if models else EngineLoad(0, 0, 0)
        counters = self.engine_thread.counters
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
            jobs_done=counters.done,
            jobs_failed=counters.failed,
            jobs_running=tuple(map(_progress, self.engine_thread.runs[:MAX_JOBS_TOLD])),
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
        """No further jobs are wanted here. Safe in a signal handler: the heartbeat tells it."""
        self.state = "draining"
        self._heartbeat.tell()

    def stop(self) -> None:
        """End the engine and the announcement."""
        self.isolation.stop()
        self.leases.stop()
        if self._models is not None:
            self.engine_thread.stop()
            self.watchdog.stop()
        self._heartbeat.withdraw()

    def _is_alive(self) -> bool:
        """Whether the engine is, or may still come."""
        if self._models is None or self.engine_thread.is_alive:
            return True
        self.state = "draining"
        return False


def _progress(run: JobRun) -> RunningJob:
    return RunningJob(id=run.job_id, bars_done=run.num_bars_done, bars_total=run.num_bars_total)
