"""The worker's models once more, in the child, for one job at a time."""

import os
from collections.abc import Mapping
from typing import Any, Final

import torch

from kronos_client.contract.forecast import MAX_COUNT
from kronos_client.contract.jobs import Limits
from kronos_model.devices.resolution import resolve_device
from kronos_model.errors import DeviceError, OutOfMemory
from worker.inference.engine_thread import EngineThread
from worker.inference.model_cache import ModelCache
from worker.inference.model_loader import Loadable, ModelLoader
from worker.inference.shutdown import EXIT_STATUS, end_at_once
from worker.inference.watchdog import Watchdog
from worker.settings import WorkerSettings

MAX_SLOTS: Final = 64
"""The worker's own engines have the memory; a job of more paths runs in rounds, to the same forecast."""


class QuarantineHost:
    """As ``executor.Host``: gives the results that the worker would, and ends with its engine.

    Args:
        hello: the worker's ``device`` as resolved, ``device_warning``, ``node`` and ``num_threads``.

    Raises KronosError where device, memory or checkpoint cannot be had.
    """

    def __init__(self, settings: WorkerSettings, hello: Mapping[str, Any]) -> None:
        self.node = str(hello["node"])
        self.device, warning = resolve_device(hello["device"])
        if warning is not None:
            raise DeviceError(warning)
        self.device_warning: str | None = hello["device_warning"]
        max_slots = min(settings.max_slots or MAX_SLOTS, MAX_SLOTS)
        self._settings = settings.model_copy(update={"max_slots": max_slots})
        watchdog = Watchdog(settings.step_timeout_s, _hang)
        self.engine_thread = EngineThread(
            watchdog=watchdog,
            on_death=lambda: os._exit(EXIT_STATUS),
            on_start=lambda: torch.set_num_threads(hello["num_threads"]),
        )
        loader = ModelLoader(self._settings, self.device)
        own = loader.load_own()
        if loader.device_warning is not None:
            raise OutOfMemory(loader.device_warning)
        self.engine_thread.start()
        watchdog.start()
        self.models = ModelCache(
            self.engine_thread,
            loader,
            own,
            self._settings.further_models,
            max_models=self._settings.max_models,
            registry=loader.registry,
        )

    @property
    def limits(self) -> Limits:
        """As of ``WorkerProcess``."""
        return self._settings.limits(self.models.max_context or MAX_COUNT)

    def limits_of(self, model: Loadable | None) -> Limits:
        """As of ``WorkerProcess``."""
        return self._settings.limits(self.models.max_context_of(model))


def _hang(seen_s: float) -> None:
    end_at_once(f"an engine hangs: a step took over {seen_s:.0f} s (KRONOS_STEP_TIMEOUT_S)")
