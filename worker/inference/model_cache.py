"""The models of one worker: its own, and others that are loaded when a job names them."""

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from functools import cache

from kronos_client.contract.calibration import Calibration, check_calibrated
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.model_info import ModelInfo
from kronos_client.contract.worker_status import ModelStatus
from kronos_client.registry.registered_model import RegisteredModel
from kronos_model.checkpoints.names import did_you_mean, full_name
from kronos_model.engine.reports import EngineLoad
from kronos_model.errors import CheckpointError, KronosError, OutOfMemory
from worker.inference.engine_thread import EngineThread
from worker.inference.model_loader import Loadable, LoadedModel, ModelLoader
from worker.settings import WorkerSettings

log = logging.getLogger(__name__)


class CacheEntry:
    """A place that is taken before its model is loaded. Jobs hold it while they need the model.

    ``loading`` is done once the model is loaded, or has failed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_jobs = 0
        self.last_used = 0
        self.loading: Future[LoadedModel | JobError] = Future()

    @property
    def served(self) -> LoadedModel:
        """The model, once ``loading`` is done. Raises JobError if it could not be loaded."""
        assert self.loading.done()
        outcome = self.loading.result()
        if isinstance(outcome, JobError):
            raise JobError(*outcome.args)  # a new one for each job: threads share the stored one
        return outcome

    @property
    def loaded(self) -> LoadedModel | None:
        """The model, if it is loaded."""
        outcome = self.loading.result() if self.loading.done() else None
        return None if isinstance(outcome, JobError) else outcome

    def status(self) -> ModelStatus:
        served = self.loaded
        calibration = None if served is None else calibration_of(served.registered)
        load = EngineLoad(0, 0, 0) if served is None else served.engine.load
        return ModelStatus(
            id=self.name,
            revision=None if served is None else served.info.revision,
            state="loading" if served is None else "ready",
            max_context=None if served is None else served.max_context,
            lookback=None if served is None else served.lookback,
            min_lookback=None if served is None else served.min_lookback,
            calibration=None if calibration is None else calibration.info(),
            engine=None if served is None else served.engine_kind,
            engine_warning=None if served is None else served.engine_warning,
            jobs=self.num_jobs,
            **asdict(load),
        )


class ModelCache:
    """Holds at most ``KRONOS_MAX_MODELS``. All methods may be called from any thread.

    Another model is loaded when a job first names it. The cache's thread loads one model at a time. If a
    place is needed, the cache drops the model that was used longest ago and that no job holds. It never drops
    ``own``, the worker's own model.
    """

    def __init__(
        self, engine_thread: EngineThread, loader: ModelLoader, own: LoadedModel, settings: WorkerSettings
    ) -> None:
        self._engine_thread = engine_thread
        self._loader = loader
        self._registry = loader.registry
        self._allowed = settings.further_models
        self._max_models = settings.max_models
        self._limits = cache(settings.limits)  # a job's, for a model's longest context
        engine_thread.add(own.engine)
        self.own = own
        self._own = CacheEntry(own.name)
        self._own.loading.set_result(own)
        self._further: dict[Loadable, CacheEntry] = {}
        self._lock = threading.Lock()
        self._uses = itertools.count(1)
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._work_off, name="kronos-loader", daemon=True).start()

    @property
    def names(self) -> list[str]:
        """Model names that jobs may use, the worker's own first; without registered models."""
        return [self._own.name, *(name for name in self._allowed if name != self._own.name)]

    def find(self, name: str | None) -> Loadable | None:
        """The model that a job names; None for the worker's own. See ``ModelRegistry.resolve``.

        Raises:
            JobError: MODEL_NOT_ALLOWED, or the damage of a registered model.
        """
        if name is None or name == self._own.name:
            return None
        if name in self._allowed:
            return self._allowed[name]
        registered = self._find_registered(name)
        if registered is None and full_name(name) != name:
            return self.find(full_name(name))
        if registered is None:
            more = "" if self._registry is None else ", and the registered models that `kronos models` lists"
            served = f"{', '.join(self.names)}{more}"
            text = f"this worker serves other models: {served}; name one of them, or none for the first"
            text += did_you_mean(name, [*self.names, *(self._registry.names(name) if self._registry else ())])
            raise JobError(ErrorCode.MODEL_NOT_ALLOWED, text, "model", {"allowed": self.names})
        return None if registered == self.own.registered else registered

    def hold(self, wanted: Loadable | None) -> CacheEntry:
        """Hold a model until ``release``; None is the worker's own. It may still be loading.

        Raises:
            JobError: MODEL_CAPACITY if no place is free.
        """
        with self._lock:
            entry = self._own if wanted is None else self._take(wanted)
            entry.num_jobs += 1
        return entry

    def release(self, entry: CacheEntry) -> None:
        """Hold the model no longer."""
        with self._lock:
            entry.num_jobs -= 1
            entry.last_used = next(self._uses)

    def limits_of(self, wanted: Loadable | None) -> Limits:
        """The limits of a job for a model, loaded or not; None is the worker's own.

        Raises:
            JobError: The model's metadata is damaged.
        """
        try:
            return self._limits(
                self.own.max_context if wanted is None else self._loader.max_context_of(wanted)
            )
        except CheckpointError as error:
            raise JobError.from_kronos(error, prefix="model") from None

    def calibration_for(self, job: ForecastJob, wanted: Loadable | None) -> Calibration:
        """The calibration of a model, for a job that asks for it.

        Raises:
            JobError: NOT_CALIBRATED.
        """
        name = self._own.name if wanted is None else name_of(wanted)
        return check_calibrated(job, name, calibration_of(self.own.registered if wanted is None else wanted))

    def recorded_coverage(self, model: ModelInfo) -> float | None:
        """What the backtest that is recorded with a loaded model found its 80 % intervals to hold."""
        with self._lock:
            loaded = [entry.loaded for entry in (self._own, *self._further.values())]
        found = [each.registered for each in loaded if each is not None and each.info == model]
        return found[0].metadata.coverage if found and found[0] is not None else None

    def status(self) -> tuple[ModelStatus, ...]:
        with self._lock:
            entries = [self._own, *self._further.values()]
        return tuple(entry.status() for entry in entries)

    def _find_registered(self, name: str) -> RegisteredModel | None:
        """Look in the folder, then among loaded models, since the folder's copy may be deleted."""
        if self._registry is None:
            return None
        try:
            if found := self._registry.resolve(name):
                return found
        except CheckpointError as error:
            raise JobError.from_kronos(error, prefix="model") from None
        with self._lock:
            here = [self.own.registered, *self._further]
        loaded = [model for model in here if isinstance(model, RegisteredModel)]
        called = [model for model in loaded if name in (model.name, model.reference)]
        return max(called, key=lambda model: model.version, default=None)

    def _take(self, wanted: Loadable) -> CacheEntry:
        """The entry of another model, made if there is none. Needs the lock."""
        if wanted in self._further:
            return self._further[wanted]
        name = name_of(wanted)
        if 1 + len(self._further) >= self._max_models:
            self._make_room(name)
        entry = self._further[wanted] = CacheEntry(name)
        self._work.put(lambda: self._load(entry, wanted))
        return entry

    def _make_room(self, name: str) -> None:
        """Drop the model that was used longest ago and that no job holds. Needs the lock."""
        idle = {wanted: entry for wanted, entry in self._further.items() if entry.num_jobs == 0}
        if not idle:
            reason = f"all {self._max_models} places for models (KRONOS_MAX_MODELS) are in use"
            raise _no_capacity(name, reason)
        entry = self._further.pop(min(idle, key=lambda wanted: idle[wanted].last_used))
        self._work.put(lambda: self._drop(entry))

    def _work_off(self) -> None:
        while True:
            try:
                self._work.get()()
            except Exception:  # a defect must not block all later loads
                log.exception("the model loader failed because of a defect, and continues")

    def _load(self, entry: CacheEntry, wanted: Loadable) -> None:
        if self._further.get(wanted) is not entry:  # it was dropped: no job waits for it
            return
        log.info("loading model %s", entry.name)
        outcome = self._try_to_load(entry.name, wanted)
        if isinstance(outcome, JobError):
            if self._loader.is_device_lost():
                self._engine_thread.die(f"the device failed while model {entry.name} was being loaded")
                return  # the jobs that wait for the model see that the thread has died
            self._loader.reclaim()
            with self._lock:  # the next job that names the model tries again
                if self._further.get(wanted) is entry:
                    del self._further[wanted]
        else:
            log.info("model %s is loaded", entry.name)
            self._engine_thread.add(outcome.engine)
        entry.loading.set_result(outcome)

    def _try_to_load(self, name: str, wanted: Loadable) -> LoadedModel | JobError:
        """Load a model. An error is returned: its traceback would keep the loaded parts in memory."""
        try:
            return self._loader.load(wanted)
        except KronosError as error:
            # The log has the whole message. Results must not contain its paths.
            log.warning("model %s could not be loaded: %s: %s", name, error.code, error.message)
            if isinstance(error, OutOfMemory):
                return _no_capacity(name, error.message)
            return JobError.from_kronos(error, prefix="model")
        except Exception:  # the jobs that wait for the model must end
            log.exception("model %s could not be loaded", name)
            reason = f"the model {name} could not be loaded; see the worker's log"
            return JobError(ErrorCode.INTERNAL, reason, "model")

    def _drop(self, entry: CacheEntry) -> None:
        if (served := entry.loaded) is not None:
            self._engine_thread.remove(served.engine)
            self._loader.reclaim()
            log.info("model %s was unloaded to make room", entry.name)


def name_of(wanted: Loadable) -> str:
    """The name by which jobs choose a model."""
    return wanted.reference if isinstance(wanted, RegisteredModel) else str(wanted.model)


def calibration_of(wanted: Loadable | None) -> Calibration | None:
    """The calibration of a registered model; other models have none."""
    return wanted.metadata.calibration if isinstance(wanted, RegisteredModel) else None


def _no_capacity(name: str, reason: str) -> JobError:
    remedy = "try again later, raise KRONOS_MAX_MODELS or KRONOS_MEMORY_MB, or add workers"
    text = f"the worker has no room for {name}: {reason}; {remedy}"
    return JobError(ErrorCode.MODEL_CAPACITY, text, "model")
