"""One finetuning worker: its device, its folders and its status. It has no model and imports no torch.

Training runs in a separate process, one at a time. So this process uses no GPU and keeps no memory of it.
"""

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from redis import Redis

from kronos_client.contract.job_limits import Limits
from kronos_client.contract.worker_status import FinetuneWorkerStatus, State, TrainingStatus
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import JobStore
from kronos_client.redis.routing import queue_for
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.settings import SettingsError
from worker.broker.claims import Claims
from worker.broker.result_backend import CodedRedisBackend
from worker.config import UNACKED_INDEX_KEYS
from worker.monitoring.heartbeat import Heartbeat, facts_of_process
from worker.monitoring.metrics import FinetuneMetrics
from worker.settings import WorkerSettings
from worker.training.data_folder import DataFolder
from worker.training.job_folder import RUNS
from worker.training.start_models import StartModels

log = logging.getLogger(__name__)

NO_PRED_LEN_LIMIT: Final = 2**31


class SingleJobCapacity:
    """The ``Capacity`` of a finetuning worker, which takes a job only if it holds none.

    After a lost connection Celery counts only the jobs taken since. It would take a second job, which other
    workers could train at once.
    """

    def take(self, job_id: str, num_paths: int, num_bytes: int = 0) -> None:
        """Nothing: ``has_room`` reads Celery's requests."""

    def has_room(self, unfinished: Mapping[str, Any]) -> bool:
        """Whether to take another job. ``unfinished`` holds Celery's unfinished requests by id.

        A request that waits for its ``eta`` takes no room.
        """
        now = datetime.now(UTC)
        return all(request.eta is not None and request.eta > now for request in list(unfinished.values()))

    def wake_by(self, wake: Callable[[], object]) -> None:
        """Nothing: only the end of a job makes room, and that already wakes Celery."""


class FinetuneProcess:
    """A finetuning worker's process, as its tasks and signal handlers need it.

    Args:
        device: The probe's report: ``device``, ``warning`` and ``description``.

    Raises:
        SettingsError: A folder is missing, or cannot be written.
    """

    def __init__(self, settings: WorkerSettings, node: str, device: Mapping[str, Any]) -> None:
        self.settings = settings
        self.node = node
        self.model_folder = checked_model_folder(settings)
        self.registry = ModelRegistry(self.model_folder)
        self.start_models = StartModels(settings, self.registry)
        self.data_folder = checked_data_folder(settings)
        self.device = str(device["device"])
        self.device_warning: str | None = device["warning"]
        self.state: State = "loading"
        self.is_draining = threading.Event()
        self.is_dead = False  # as in WorkerProcess; there is no engine here that could die
        self.capacity = SingleJobCapacity()
        self.redis: Redis = connect(settings.redis_url.get_secret_value())
        self.job_store = JobStore(self.redis, settings.result_ttl_s, UNACKED_INDEX_KEYS[settings.role])
        self.claims = Claims(self.job_store, float(settings.visibility_timeout_s))
        self.training: TrainingStatus | None = None
        self.metrics = FinetuneMetrics(lambda: self.training)
        self._description = device["description"]
        self._started = time.time()
        self._heartbeat = Heartbeat(self.redis, node, self.status)

    @property
    def queue(self) -> str:
        return queue_for(self.device, "finetune")

    @property
    def limits(self) -> Limits:
        """The limits of a job's content."""
        return self.settings.limits(NO_PRED_LEN_LIMIT)

    def start(self) -> None:
        """Announce this worker."""
        CodedRedisBackend.runs_here = staticmethod(self.claims.has)  # type: ignore[method-assign]
        self.metrics.describe(device=self.device, model="", queue=self.queue, dtype="")
        if self.settings.metrics_port is not None:
            self.metrics.serve(self.settings.metrics_host, self.settings.metrics_port)
        self._heartbeat.start()

    def ready(self) -> None:
        """Announce, once, that this worker takes jobs. Called at each connection to the broker."""
        if self.state != "loading":
            return
        self.state = "ready"
        self._heartbeat.announce_soon()
        log.info(
            "ready: role=finetune device=%s warning=%s queue=%s", self.device, self.device_warning, self.queue
        )

    def drain(self) -> None:
        """Announce that this worker takes no more jobs, and stop its job. Safe in a signal handler."""
        self.state = "draining"
        self.is_draining.set()
        self._heartbeat.announce_soon()

    def stop(self) -> None:
        """Remove the announcement."""
        self._heartbeat.withdraw()

    def status(self) -> FinetuneWorkerStatus:
        """The worker's status, as it is announced."""
        return FinetuneWorkerStatus(
            node=self.node,
            state=self.state,
            role="finetune",
            queue=self.queue,
            requested_device=self.settings.device,
            device=self.device,
            device_warning=self.device_warning,
            device_description=self._description,
            model=None,
            training=self.training,
            jobs_done=self.metrics.num_done,
            jobs_failed=self.metrics.num_failed,
            model_folder=str(self.model_folder),
            has_data_folder=self.data_folder.root is not None,
            threads=self.settings.threads,
            **facts_of_process(self._started, "celery", "kombu", "redis"),
        )


def checked_model_folder(settings: WorkerSettings) -> Path:
    """The model folder. Raises SettingsError if this process cannot write there."""
    folder = settings.model_folder
    if folder is None:
        raise SettingsError(
            "KRONOS_MODEL_FOLDER is not set: set it to the folder where a finetuning worker registers its "
            "models, and keeps what it needs to continue after a crash"
        )
    try:
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder / RUNS):
            pass
    except OSError as error:
        raise SettingsError(
            f"KRONOS_MODEL_FOLDER cannot be used: {folder} cannot be written: {error}"
        ) from None
    return folder.absolute()


def checked_data_folder(settings: WorkerSettings) -> DataFolder:
    """The folder of the jobs' candles, if one is set. Raises SettingsError if it is missing."""
    folder = settings.data_folder
    if folder is not None and not folder.is_dir():
        raise SettingsError(f"KRONOS_DATA_FOLDER cannot be used: {folder} is not a folder")
    return DataFolder(folder)
