"""One place in the model cache, and its model after loading."""

import threading

from kronos_client.contract.errors import JobError
from kronos_client.contract.worker_status import ModelStatus
from worker.inference.model_loader import LoadedModel


class CacheEntry:
    """A place that is taken before its model is loaded. Jobs hold it while they need the model."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_jobs = 0
        self.last_used = 0
        self.is_dropped = False
        self._settled = threading.Event()
        self._served: LoadedModel | None = None
        self._error: JobError | None = None

    def wait(self, timeout_s: float) -> bool:
        """Wait until the model is loaded or has failed; False if the time ran out."""
        return self._settled.wait(timeout_s)

    @property
    def served(self) -> LoadedModel:
        """The model, after ``wait`` returned True. Raises JobError if it could not be loaded."""
        if self._error is not None:
            raise JobError(*self._error.args)  # a new one for each job: threads share the stored one
        if self._served is None:
            raise RuntimeError("the model is not loaded yet")
        return self._served

    def settle(self, outcome: LoadedModel | JobError) -> None:
        """Set the outcome, and wake the jobs that wait for it."""
        if isinstance(outcome, JobError):
            self._error = outcome
        else:
            self._served = outcome
        self._settled.set()

    def empty(self) -> LoadedModel | None:
        """Remove and return the model, if there is one."""
        served, self._served = self._served, None
        return served

    def status(self) -> ModelStatus:
        """The model's status for operators."""
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
