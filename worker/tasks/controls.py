"""A Celery control command that makes a worker load a model.

Celery answers commands on the thread that takes jobs, so a command must not wait. The first command with an
id starts to load the model. Later ones with the same id return the outcome.
"""

import logging
import time
from collections import OrderedDict
from typing import Any, Final

from celery.worker.control import control_command

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import LOAD_MODEL_COMMAND, MAX_ID_CHARS
from worker.inference.forecast_process import ForecastProcess
from worker.inference.model_cache import CacheEntry, ModelCache

log = logging.getLogger(__name__)

MAX_ASKS: Final = 100
"""Number of answers that are kept, the newest."""
MAX_LOADING: Final = 4
"""Number of loads that may be waited for at once."""
WAIT_S: Final = 600.0


class LoadRequests:
    """The requests to load a model, by id. Used on one thread."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, tuple[CacheEntry, float]] = OrderedDict()

    def answer(self, models: ModelCache, name: str, ask: str) -> dict[str, object]:
        """The state of the load; the first call starts it."""
        if ask not in self._asked:
            if sum(not entry.loading.done() for entry, _ in self._asked.values()) >= MAX_LOADING:
                reason = "the worker is loading other models; try again later"
                return failed(JobError(ErrorCode.MODEL_CAPACITY, reason))
            self._asked[ask] = self._load(models, name), time.monotonic()
            while len(self._asked) > MAX_ASKS:
                self._asked.popitem(last=False)
        entry, asked_at = self._asked[ask]
        if entry.loading.done():
            try:
                return {"state": "ready", "model": entry.served.info.model_dump(mode="json")}
            except JobError as error:
                return failed(error)
        if time.monotonic() > asked_at + WAIT_S:
            return failed(JobError(ErrorCode.TIMEOUT, f"the model is not loaded within {WAIT_S:.0f} s"))
        return {"state": "loading"}

    def _load(self, models: ModelCache, name: str) -> CacheEntry:
        try:
            entry = models.hold(models.find(name))
        except Exception as error:  # every request ends with an answer
            if not isinstance(error, JobError):
                log.exception("the model %r could not be loaded", name)
                error = JobError(ErrorCode.INTERNAL, "the worker failed; see its log")
            entry = CacheEntry(name)
            entry.loading.set_result(error)
        else:
            entry.loading.add_done_callback(lambda _: models.release(entry))
        return entry


_requests = LoadRequests()


def failed(error: JobError) -> dict[str, object]:
    """An answer with an error."""
    fields = ("code", "message", "field", "details")
    return {"state": "failed", "error": dict(zip(fields, error.args, strict=True))}


@control_command(name=LOAD_MODEL_COMMAND, args=[("model", str), ("ask", str)], signature="MODEL ASK")
def load_model(state: object, model: Any = None, ask: Any = None) -> dict[str, object]:
    """Load a model that jobs may name. Returns at once; ``state`` is loading, ready or failed."""
    if not all(isinstance(text, str) and 1 <= len(text) <= MAX_ID_CHARS for text in (model, ask)):
        return failed(JobError(ErrorCode.BAD_VALUE, "model and ask must be short texts", "model"))
    process = ForecastProcess.current()
    answer = _requests.answer(process.server.models, model, ask)
    return {"device": str(process.device), "device_warning": process.device_warning, **answer}
