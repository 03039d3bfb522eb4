"""One place in the model cache, and the model in it once that is loaded."""

import threading

from kronos_client.contract.errors import JobError
from kronos_client.contract.worker_status import ModelStatus
from worker.inference.model_loader import LoadedModel


class CacheEntry:
    """A place, taken before its model is loaded. Jobs hold it while they need the model."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_jobs = 0
        self.last_used = 0
        self.is_dropped = False
        self._settled = threading.Event()
        self._served: LoadedModel | None = None
        self._error: JobError | None = None

    def wait(self, timeout_s: float) -> bool:
        """Whether the model is loaded, or could not be, within the time."""
        return self._settled.wait(timeout_s)

    @property
    def served(self) -> LoadedModel:
        """The model, once ``wait`` was true; raises JobError if it could not be loaded."""
        if self._error is not None:
            raise JobError(*self._error.args)  # each job its own: threads share this one
        if self._served is None:
            raise RuntimeError("the model is not loaded yet")
        return self._served

    def settle(self, outcome: LoadedModel | JobError) -> None:
        """Wake the jobs that wait for it."""
        if isinstance(outcome, JobError):
            self._error = outcome
        else:
            self._served = outcome
        self._settled.set()

    def empty(self) -> LoadedModel | None:
        """Give up the model, if there is one."""
        served, self._served = self._served, None
        return served

    def status(self) -> ModelStatus:
        """Return what operators see of the model."""
        served = self._served
        load = None if served is None else served.hosted.load
        return ModelStatus(
            id=self.name,
            revision=None if served is None else served.info.revision,
            state="loading" if served is None else "ready",
            jobs=self.num_jobs,
            slots=load.slots if load else 0,
            running=load.running if load else 0,
            waiting=load.waiting if load else 0,
        )
