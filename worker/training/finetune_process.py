"""One finetuning worker: its device, its folders and its status. It has no model and imports no torch.

Training runs in a separate process. So this process uses no GPU and keeps no memory of it. Backtests run in
this one: they send forecasts to other workers, and score them. A worker has one job at a time of either kind.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kronos_client.contract.worker_status import FinetuneWorkerStatus, TrainingStatus
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.registry.registered_model import RUNS
from kronos_client.settings import SettingsError
from kronos_model.devices.cores import num_cores
from worker.monitoring.metrics import FinetuneMetrics
from worker.process import WorkerProcess
from worker.settings import WorkerSettings


class FinetuneProcess(WorkerProcess):
    """A worker's process that has models trained. ``device`` is the probe's report on it.

    Raises:
        SettingsError: A folder is missing, or cannot be written.
    """

    device: str

    def __init__(self, settings: WorkerSettings, node: str, device: Mapping[str, Any]) -> None:
        self.training: TrainingStatus | None = None
        self.model_folder, self.data_folder = checked_folders(settings)
        self.registry = ModelRegistry(self.model_folder)
        self.device = str(device["device"])
        self.device_warning = device["warning"]
        self.max_processes, self.processes_limit = _most_processes(device, settings.device)
        # Known only as of the start, since this process does not use the device.
        unknown = dict.fromkeys(("memory_free_bytes", "utilisation_percent"))
        self._description = device["description"] | unknown
        super().__init__(settings, node, FinetuneMetrics(lambda: self.training))

    def start(self) -> None:
        super().start()
        self.serve_metrics()

    def status(self) -> FinetuneWorkerStatus:
        return FinetuneWorkerStatus(
            **self._facts("celery", "kombu", "redis"),
            device_description=self._description,
            model=None,
            training=self.training,
            model_folder=str(self.model_folder),
            has_data_folder=self.data_folder is not None,
            threads=self.settings.threads,
        )


def _most_processes(device: Mapping[str, Any], requested: str) -> tuple[int, str]:
    """The most processes of one job, and what limits them."""
    kind = str(device["device"]).partition(":")[0]
    if kind == "cpu":
        return num_cores(), "CPU cores: ask for fewer"
    if kind == "cuda" and ":" not in requested:
        return device["num_gpus"], "GPUs: ask for fewer"
    return 1, "GPU: ask for fewer, or set the worker's KRONOS_DEVICE to cuda"


def checked_folders(settings: WorkerSettings) -> tuple[Path, Path | None]:
    """The model folder, and the folder of the jobs' candles if one is set.

    Raises:
        SettingsError: A folder is missing, or the model folder cannot be written.
    """
    models, data = settings.model_folder, settings.data_folder
    if models is None:
        raise SettingsError(
            "KRONOS_MODEL_FOLDER is not set: set it to the folder where a finetuning worker registers its "
            "models, and keeps what it needs to continue after a crash"
        )
    try:
        (models / RUNS).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=models / RUNS).close()
    except OSError as error:
        reason = f"{models} cannot be written: {error}"
        raise SettingsError(f"KRONOS_MODEL_FOLDER cannot be used: {reason}") from None
    if data is not None and not data.is_dir():
        raise SettingsError(f"KRONOS_DATA_FOLDER cannot be used: {data} is not a folder")
    return models.absolute(), data
