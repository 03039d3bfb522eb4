"""One worker process: one resolved device, and models on it that one thread runs."""

import logging
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final

import torch
from redis import Redis

from kronos_client.contract.forecast import MAX_COUNT
from kronos_client.contract.jobs import Limits
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import JobStore
from kronos_client.redis.result_backend import CodedRedisBackend
from kronos_client.redis.routing import State, queue_for
from kronos_model.devices.cores import intra_op_threads
from kronos_model.devices.resolution import describe_device, resolve_device
from kronos_model.engine.engine import EngineLoad
from worker.broker.claims import Claims
from worker.config import UNACKED_INDEX_KEYS
from worker.inference.capacity import Intake
from worker.inference.engine_thread import EngineObserver, ForecastService
from worker.inference.isolation.isolation import Quarantine
from worker.inference.loaded_model import ServedModel
from worker.inference.model_cache import ModelPool
from worker.inference.model_loader import Loadable, ModelLoader
from worker.inference.runs import JobRun
from worker.inference.shutdown import end_at_once
from worker.inference.watchdog import Watchdog
from worker.monitoring.heartbeat import Announcer
from worker.monitoring.metrics import WorkerMetrics
from worker.settings import WorkerSettings

log = logging.getLogger(__name__)

REPORTED_PACKAGES: Final = ("torch", "celery", "kombu", "redis", "numpy")
MAX_JOBS_TOLD: Final = 16
"""Of those that run; an announcement is to stay small."""


class WorkerProcess:
    """Device, models and service of this process, and what it tells the world about them.

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
        taken_key = UNACKED_INDEX_KEYS[settings.role]
        self.job_store = JobStore(self.redis, settings.result_ttl_s, taken_key, self._note_repeated)
        self.claims = Claims(self.job_store, float(settings.visibility_timeout_s))
        self.metrics = WorkerMetrics(lambda: self.service.loads, lambda: self.service.num_jobs)
        self.watchdog = Watchdog(settings.step_timeout_s, self._hang, lambda: self._announcer.tell())
        # While a step seems to hang, no load is told: then no further job is taken.
        self.intake = Intake(lambda: () if self.watchdog.is_stalled else self.service.loads.values())
        self.service = ForecastService(
            [self.metrics, self.intake, *observers],
            watchdog=self.watchdog,
            on_admission=self.intake.admitted,
            on_death=self._die,
            on_start=lambda: torch.set_num_threads(self.num_threads),
        )
        self.num_threads = torch.get_num_threads()
        self.quarantine = Quarantine(settings.max_jobs, self._hello, lambda: self.state == "draining")
        self.is_dead = False
        self._on_engine_death = on_engine_death
        self._models: ModelPool | None = None
        self._started = time.time()
        self._announcer = Announcer(self.redis, node, self.status, self._is_alive)

    @property
    def queue(self) -> str:
        return queue_for(self.device.type)

    @property
    def models(self) -> ModelPool:
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
        CodedRedisBackend.runs_here = staticmethod(self.claims.has)  # type: ignore[method-assign]
        CodedRedisBackend.on_repeated = staticmethod(self._note_repeated)  # type: ignore[method-assign]
        self._announcer.start()
        try:
            self._models = self._load()
        except BaseException:  # whatever it was, this worker is not coming
            self._announcer.withdraw()
            raise

    def ready(self) -> None:
        """Jobs are taken from now on; said once, also where the connection is made again."""
        if self.state != "loading":
            return
        self.state = "ready"
        self._announcer.announce()
        log.info(
            "ready: device=%s warning=%s model=%s queue=%s",
            self.device,
            self.device_warning,
            self.served.info.id,
            self.queue,
        )

    def _load(self) -> ModelPool:
        loader = ModelLoader(self.settings, self.device)
        own = loader.load_own()
        if loader.device_warning is not None:
            self.device, self.device_warning = loader.device, loader.device_warning
        self.service.start()
        self.watchdog.start()
        self._serve_metrics(own.name)
        return ModelPool(
            self.service,
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
            f"and its jobs are delivered again: {', '.join(self.service.job_ids)}"
        )

    def _hello(self) -> dict[str, Any]:
        """What the quarantine's process must know to give the results that this one would."""
        return {
            "node": self.node,
            "device": str(self.device),
            "device_warning": self.device_warning,
            "num_threads": self.num_threads,
        }

    def _note_repeated(self, tag: str) -> None:
        """Count a claim that was lost, once."""
        if self.claims.take_away(tag):
            self.metrics.jobs_repeated.inc()

    def _die(self) -> None:
        self.is_dead = True
        self._on_engine_death()

    def status(self) -> dict[str, Any]:
        """Everything an operator wants to know, JSON-compatible.

        ``model`` and the figures behind it are the worker's own. ``slots`` and the sequences running in them
        and waiting for them, which are sample paths, are sums over ``models``; rates and means are those of
        the last seconds; of the jobs that run the most advanced are named.
        """
        models = self._models
        served = models.own if models else None
        load = self.service.load if models else EngineLoad(0, 0, 0)
        counters = self.service.counters
        return {
            "node": self.node,
            "state": "draining" if self.watchdog.is_stalled else self.state,
            "role": "forecast",
            "queue": self.queue,
            "requested_device": self.settings.device,
            "device": str(self.device),
            "device_warning": self.device_warning,
            "device_description": describe_device(self.device).as_dict(),
            # None while the model is loading.
            "model": served.info.model_dump() if served else None,
            "num_parameters": served.num_parameters if served else None,
            "max_context": served.max_context if served else None,
            "load_s": served.load_s if served else None,
            "jobs_done": counters.done,
            "jobs_failed": counters.failed,
            "jobs_running": [_progress(run) for run in self.service.runs[:MAX_JOBS_TOLD]],
            "num_jobs_running": self.service.num_jobs,
            "sequences_running": load.running,
            "sequences_waiting": load.waiting,
            "slots": load.slots,
            **asdict(self.metrics.window.recently()),
            "models": models.status() if models else [],
            "max_models": self.settings.max_models,
            "dtype": self.settings.dtype,
            "threads": self.num_threads,
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in REPORTED_PACKAGES},
            "host": platform.node(),
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self._started, 3),
        }

    def drain(self) -> None:
        """No further jobs are wanted here. Safe in a signal handler: the announcer tells it."""
        self.state = "draining"
        self._announcer.tell()

    def stop(self) -> None:
        """End the engine and the announcement."""
        self.quarantine.stop()
        if self._models is not None:
            self.service.stop()
            self.watchdog.stop()
        self._announcer.withdraw()

    def _is_alive(self) -> bool:
        """Whether the engine is, or may still come."""
        if self._models is None or self.service.is_alive:
            return True
        self.state = "draining"
        return False


def _progress(run: JobRun) -> dict[str, Any]:
    """How far a job is, over all paths of all its series."""
    return {"id": run.job_id, "bars_done": run.num_bars_done, "bars_total": run.num_bars_total}
