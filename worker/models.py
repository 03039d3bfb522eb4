"""The models of one worker: its own, and further ones that are loaded when a job names them."""

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kronos_model.errors import KronosError, OutOfMemory
from worker.contract.errors import ErrorCode, JobError
from worker.contract.results import ModelInfo
from worker.loading import LoadedModel, ModelLoader
from worker.model_names import ModelName
from worker.runs import HostedEngine
from worker.service import ForecastService

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedModel:
    """A model that is loaded, placed and in the service's hands."""

    info: ModelInfo
    hosted: HostedEngine
    max_context: int
    num_parameters: int
    load_s: float


class Resident:
    """A model's place in the pool, taken before the model is there. Jobs hold it while they need it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_jobs = 0
        self.last_used = 0
        self.is_dropped = False
        self._settled = threading.Event()
        self._served: ServedModel | None = None
        self._error: JobError | None = None

    def wait(self, timeout_s: float) -> bool:
        """Whether the model is loaded, or could not be, within the time."""
        return self._settled.wait(timeout_s)

    @property
    def served(self) -> ServedModel:
        """The model, once ``wait`` was true; raises JobError where it could not be loaded."""
        if self._error is not None:
            raise JobError(*self._error.args)  # each job its own: threads share this one
        if self._served is None:
            raise RuntimeError("the model is not loaded yet")
        return self._served

    def settle(self, outcome: ServedModel | JobError) -> None:
        """Wake the jobs that wait for it."""
        if isinstance(outcome, JobError):
            self._error = outcome
        else:
            self._served = outcome
        self._settled.set()

    def empty(self) -> ServedModel | None:
        """Hand over the model, if there is one, so that it can go."""
        served, self._served = self._served, None
        return served

    def status(self) -> dict[str, Any]:
        """As told to operators; paths in ``running`` and ``waiting``."""
        served = self._served
        load = None if served is None else served.hosted.load
        return {
            "id": self.name,
            "revision": None if served is None else served.info.revision,
            "state": "loading" if served is None else "ready",
            "jobs": self.num_jobs,
            "slots": load.slots if load else 0,
            "running": load.running if load else 0,
            "waiting": load.waiting if load else 0,
        }


class ModelPool:
    """Holds at most ``max_models``. All methods may be called from any thread.

    A further model is loaded when the first job asks for it, one at a time and on a thread of the pool's own,
    and stays until its place is needed: then the one goes that no job holds and that was used longest ago.
    The worker's own stays for good.

    Args:
        further: what jobs may name beside the worker's own.
    """

    def __init__(
        self,
        service: ForecastService,
        loader: ModelLoader,
        own: LoadedModel,
        further: dict[str, ModelName],
        max_models: int,
    ) -> None:
        self._service = service
        self._loader = loader
        self._allowed = further
        self._max_models = max_models
        self._own = Resident(own.info.id)
        self._own.settle(self._host(own))
        self._further: dict[str, Resident] = {}
        self._lock = threading.Lock()
        self._uses = itertools.count(1)
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def own(self) -> ServedModel:
        return self._own.served

    @property
    def names(self) -> list[str]:
        """What jobs may name, the worker's own first."""
        return [self._own.name, *(name for name in self._allowed if name != self._own.name)]

    @contextmanager
    def use(self, name: str | None) -> Iterator[Resident]:
        """Hold a model, the worker's own where not named, while a job needs it. It may be loading still.

        Raises JobError: MODEL_NOT_ALLOWED; MODEL_CAPACITY where no place is free.
        """
        self.check(name)
        with self._lock:
            resident = self._own if name in (None, self._own.name) else self._take(str(name))
            resident.num_jobs += 1
        try:
            yield resident
        finally:
            with self._lock:
                resident.num_jobs -= 1
                resident.last_used = next(self._uses)

    def check(self, name: str | None) -> None:
        """Raises JobError MODEL_NOT_ALLOWED for a name that is not on the list."""
        if name is None or name in self.names:
            return
        raise JobError(
            ErrorCode.MODEL_NOT_ALLOWED,
            f"this worker serves {', '.join(self.names)}; name one of them, or none for the first",
            "model",
            {"allowed": self.names},
        )

    def max_context_of(self, name: str | None) -> int:
        """Bars that a model which may be named sees at most, whether or not it is loaded."""
        return (
            self.own.max_context if name in (None, self._own.name) else self._loader.max_context_of(str(name))
        )

    def status(self) -> list[dict[str, Any]]:
        """Every model that is here or on its way, the worker's own first."""
        with self._lock:
            residents = [self._own, *self._further.values()]
        return [resident.status() for resident in residents]

    def _host(self, loaded: LoadedModel) -> ServedModel:
        return ServedModel(
            info=loaded.info,
            hosted=self._service.add(loaded.info.id, loaded.engine),
            max_context=loaded.max_context,
            num_parameters=loaded.num_parameters,
            load_s=loaded.load_s,
        )

    def _take(self, name: str) -> Resident:
        """The place of a further model, made where there is none. Under the lock."""
        if name in self._further:
            return self._further[name]
        if 1 + len(self._further) >= self._max_models:
            self._make_room(name)
        resident = self._further[name] = Resident(name)
        self._do(lambda: self._load(resident))
        return resident

    def _make_room(self, name: str) -> None:
        """Drop the model that no job holds and that was used longest ago. Under the lock."""
        idle = [resident for resident in self._further.values() if resident.num_jobs == 0]
        if not idle:
            raise _no_capacity(
                name, f"all {self._max_models} places for models (KRONOS_MAX_MODELS) are in use"
            )
        victim = min(idle, key=lambda resident: resident.last_used)
        victim.is_dropped = True
        del self._further[victim.name]
        self._do(lambda: self._drop(victim))

    def _do(self, work: Callable[[], None]) -> None:
        self._work.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work_off, name="kronos-loader", daemon=True)
            self._thread.start()

    def _work_off(self) -> None:
        while True:
            try:
                self._work.get()()
            except Exception:  # a defect here must not leave the jobs of all later loads waiting
                log.exception("the models' loader failed, going on")

    def _load(self, resident: Resident) -> None:
        if resident.is_dropped:  # whoever wanted it is gone
            return
        log.info("loading model %s", resident.name)
        outcome = self._try_to_load(resident.name)
        if isinstance(outcome, JobError):
            log.warning("model %s could not be loaded: %s", resident.name, outcome)
            self._loader.reclaim()
            with self._lock:  # the next job that names it tries again
                if self._further.get(resident.name) is resident:
                    del self._further[resident.name]
            resident.settle(outcome)
        else:
            log.info("model %s is loaded", resident.name)
            resident.settle(self._host(outcome))

    def _try_to_load(self, name: str) -> LoadedModel | JobError:
        """An error that keeps no traceback: that would keep what was loaded so far."""
        try:
            return self._loader.load_further(self._allowed[name])
        except OutOfMemory as error:
            return _no_capacity(name, error.message)
        except KronosError as error:
            return JobError.from_kronos(error, prefix="model")
        except Exception:  # whatever it was, the jobs that wait for the model must be told
            log.exception("model %s could not be loaded", name)
            return JobError(
                ErrorCode.INTERNAL, f"the model {name} could not be loaded; see the worker's log", "model"
            )

    def _drop(self, resident: Resident) -> None:
        served = resident.empty()
        if served is None:
            return
        self._service.remove(served.hosted)
        self._loader.reclaim()
        log.info("model %s is dropped", resident.name)


def _no_capacity(name: str, reason: str) -> JobError:
    return JobError(
        ErrorCode.MODEL_CAPACITY,
        f"the worker has no room for {name}: {reason}; try again later, raise KRONOS_MAX_MODELS or "
        "KRONOS_MEMORY_MB, or add workers",
        "model",
    )
