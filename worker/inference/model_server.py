"""The models of one process on one device, and the thread that runs their engines."""

from collections.abc import Callable, Sequence

import torch

from worker.inference.engine_thread import EngineObserver, EngineThread
from worker.inference.forced_shutdown import end_at_once
from worker.inference.model_cache import ModelCache
from worker.inference.model_loader import ModelLoader, UsedEngines
from worker.inference.watchdog import Watchdog
from worker.settings import WorkerSettings


class ModelServer:
    """Computes jobs, in a worker or in its isolated process for suspects.

    Args:
        device: The resolved device; ``load`` may replace it by the CPU.
        device_warning: Why the device is not the requested one, or None.
        engines: Those that models must have.
        observers, on_admission, on_death: As of ``EngineThread``.
        on_stall: Called when a step begins to hang, and when it continues.
    """

    models: ModelCache
    """Set by ``load``."""

    def __init__(
        self,
        settings: WorkerSettings,
        node: str,
        device: torch.device,
        device_warning: str | None,
        num_threads: int,
        *,
        engines: UsedEngines | None = None,
        observers: Sequence[EngineObserver] = (),
        on_admission: Callable[[str], None] = lambda job_id: None,
        on_stall: Callable[[], object] = lambda: None,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self.node, self.device, self.device_warning = node, device, device_warning
        self.num_threads = num_threads
        self.engines: UsedEngines = {} if engines is None else engines
        self.is_loaded = False
        self.watchdog = Watchdog(settings.step_timeout_s, self._hang, on_stall)
        self.engine_thread = EngineThread(
            observers,
            watchdog=self.watchdog,
            on_admission=on_admission,
            on_death=on_death,
            on_start=lambda: torch.set_num_threads(num_threads),
        )

    def load(self) -> None:
        """Load the worker's own model and start the engines. If it does not fit the device, use the CPU.

        Raises:
            KronosError: The checkpoint cannot be loaded, or the memory is too small for one sample path.
        """
        loader = ModelLoader(self._settings, self.device, self.engines)
        own = loader.load()
        if loader.device_warning is not None:
            self.device, self.device_warning = loader.device, loader.device_warning
        self.engine_thread.start()
        self.watchdog.start()
        self.models = ModelCache(self.engine_thread, loader, own, self._settings)
        self.is_loaded = True
        self.engine_thread.wait_until_prepared()

    def stop(self) -> None:
        if self.is_loaded:
            self.engine_thread.stop()
            self.watchdog.stop()

    def _hang(self, seen_s: float) -> None:
        """End the process, since neither the engine thread nor its computation can be stopped."""
        jobs = ", ".join(sorted(run.job_id for run in self.engine_thread.runs))
        end_at_once(
            f"an engine hangs: a step took over {seen_s:.0f} s (KRONOS_STEP_TIMEOUT_S). The process ends "
            f"now, and its jobs are delivered again: {jobs}"
        )
