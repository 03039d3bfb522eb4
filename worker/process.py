"""One worker process: one resolved device, one model, loaded once, owned by one engine thread."""

import logging
import os
import platform
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import torch
from redis import Redis
from redis.exceptions import RedisError

from kronos_model.checkpoint import CheckpointPair, load_pair
from kronos_model.device import describe_device, move_to_device, resolve_device
from kronos_model.engine.build import build_engine
from worker.connection import connect
from worker.contract.jobs import Limits
from worker.contract.results import ModelInfo
from worker.jobs import JobRecords
from worker.routing import ANNOUNCEMENT_INTERVAL_S, State, announce, queue_for, withdraw
from worker.service import Counters, ForecastService
from worker.settings import Settings

log = logging.getLogger(__name__)

CLIP: Final = 5.0
REPORTED_PACKAGES: Final = ("torch", "celery", "kombu", "redis", "numpy")


@dataclass(frozen=True)
class ServedModel:
    """A model that is loaded, placed and run by its service."""

    info: ModelInfo
    service: ForecastService
    max_context: int
    num_parameters: int
    load_s: float


class WorkerProcess:
    """Device, model and service of this process, and what it tells the world about them.

    ``start`` announces and loads; it raises KronosError where the device or the checkpoint cannot be had.
    """

    def __init__(self, settings: Settings, node: str) -> None:
        self.settings = settings
        self.node = node
        self.state: State = "loading"
        device, self.device_warning = resolve_device(settings.device)
        self.device = device
        self.redis: Redis = connect(settings.redis_url.get_secret_value())
        self.records = JobRecords(self.redis, settings.result_ttl_s)
        self._served: ServedModel | None = None
        self._started = time.time()
        self._withdrawn = False
        self._wake_announcer = threading.Event()
        self._announcer = threading.Thread(
            target=self._announce_until_stopped, name="kronos-announcer", daemon=True
        )

    @property
    def queue(self) -> str:
        return queue_for(self.device.type)

    @property
    def served(self) -> ServedModel:
        """The model, once it is loaded."""
        if self._served is None:
            raise RuntimeError("the model is not loaded yet")
        return self._served

    @property
    def limits(self) -> Limits:
        """What a job may ask of this process."""
        return self.settings.limits(self.served.max_context)

    def start(self, num_processes: int = 1) -> None:
        """Announce, load and start the engine; ``num_processes`` share the machine's cores."""
        torch.set_num_threads(max(1, torch.get_num_threads() // num_processes))
        self._announcer.start()
        try:
            self._served = self._load()
        except BaseException:  # whatever it was, this worker is not coming
            self.withdraw()
            raise

    def ready(self) -> None:
        """Jobs are taken from now on; said once, also where the connection is made again."""
        if self.state != "loading":
            return
        self.state = "ready"
        self._announce()
        log.info(
            "ready: device=%s warning=%s model=%s queue=%s",
            self.device,
            self.device_warning,
            self.served.info.id,
            self.queue,
        )

    def _load(self) -> ServedModel:
        started = time.perf_counter()
        settings = self.settings
        pair = load_pair(
            settings.model,
            settings.tokenizer,
            model_revision=settings.model_revision,
            tokenizer_revision=settings.tokenizer_revision,
        )
        self._place(pair)
        max_context = settings.max_context or pair.max_context
        engine = build_engine(
            pair.model,
            pair.tokenizer,
            max_context=max_context,
            clip=CLIP,
            max_slots=settings.max_slots,
            max_prefill_bars=settings.max_prefill_bars,
        )
        service = ForecastService(engine)
        service.start()
        return ServedModel(
            info=model_info(pair),
            service=service,
            max_context=max_context,
            num_parameters=sum(parameter.numel() for parameter in pair.model.parameters()),
            load_s=round(time.perf_counter() - started, 3),
        )

    def _place(self, pair: CheckpointPair) -> None:
        """Both on one device, or both on the CPU where either does not fit."""
        for module in (pair.model, pair.tokenizer):
            _, device, warning = move_to_device(module, self.device)
            if warning is not None:
                self.device, self.device_warning = device, warning
        pair.model.to(self.device)

    def status(self) -> dict[str, Any]:
        """Everything an operator wants to know, JSON-compatible."""
        served = self._served
        slots_used, slots = served.service.slots if served else (0, self.settings.max_slots)
        counters = served.service.counters if served else Counters()
        return {
            "node": self.node,
            "state": self.state,
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
            "slots_used": slots_used,
            "slots": slots,
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in REPORTED_PACKAGES},
            "host": platform.node(),
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self._started, 3),
        }

    def drain(self) -> None:
        """No further jobs are wanted here. Safe in a signal handler: the announcer tells it."""
        self.state = "draining"
        self._wake_announcer.set()

    def withdraw(self) -> None:
        """Take the announcement back."""
        self._withdrawn = True
        self._wake_announcer.set()
        if self._announcer.is_alive():
            # A renewal on its way would announce this worker once more.
            self._announcer.join(ANNOUNCEMENT_INTERVAL_S)
        try:
            withdraw(self.redis, self.node)
        except RedisError as error:
            log.warning("the announcement could not be taken back, it expires by itself: %s", error)

    def stop(self) -> None:
        """End the engine and the announcement."""
        if self._served is not None:
            self._served.service.stop()
        self.withdraw()

    def _announce(self) -> None:
        try:
            announce(self.redis, self.node, self.status())
        except RedisError as error:
            log.warning("could not announce this worker, trying again: %s", error)

    def _announce_until_stopped(self) -> None:
        """Renew while the engine is alive: a worker that cannot answer is not to be counted on."""
        while not self._withdrawn:
            if self._served is None or self._served.service.is_alive:
                self._announce()
            self._wake_announcer.wait(ANNOUNCEMENT_INTERVAL_S)
            self._wake_announcer.clear()


def model_info(pair: CheckpointPair) -> ModelInfo:
    """The names and revisions that a result carries."""
    model, tokenizer = pair.model.checkpoint, pair.tokenizer.checkpoint
    if model is None or tokenizer is None:
        raise RuntimeError("a checkpoint pair knows where it was loaded from")
    return ModelInfo(
        id=model.id, revision=model.revision, tokenizer_id=tokenizer.id, tokenizer_revision=tokenizer.revision
    )
