"""A Celery control command that makes a worker load a model.

Celery answers commands on the thread that takes jobs, so a command must not wait. The first command with an
id starts to load the model. Later ones with the same id return the outcome.
"""

import logging
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any, Final

from celery.worker.control import control_command

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import LOAD_MODEL_COMMAND, MAX_ID_CHARS
from worker.process import current_process

log = logging.getLogger(__name__)

MAX_ASKS: Final = 100
"""Number of answers that are kept, the newest."""
MAX_LOADING: Final = 4
"""Number of loads that may wait for their model at once, each on its own thread."""
WAIT_S: Final = 600.0


class LoadRequests:
    """The requests to load a model, by id, and the answer to each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, Future[dict[str, Any]]] = OrderedDict()

    def answer(self, models: Any, name: str, ask: str) -> dict[str, Any]:
        """The state of the load; the first call starts it. ``models`` is the worker's ModelCache."""
        with self._lock:
            if ask not in self._answers:
                if sum(not answer.done() for answer in self._answers.values()) >= MAX_LOADING:
                    reason = "the worker is loading other models; try again later"
                    return failed(JobError(ErrorCode.MODEL_CAPACITY, reason))
                self._answers[ask] = Future()
                while len(self._answers) > MAX_ASKS:
                    self._answers.popitem(last=False)
                given = (models, name, self._answers[ask])
                threading.Thread(target=self._load, args=given, name="kronos-load-ask", daemon=True).start()
            answer = self._answers[ask]
        return answer.result() if answer.done() else {"state": "loading"}

    def _load(self, models: Any, name: str, answered: "Future[dict[str, Any]]") -> None:
        try:
            with models.use(models.find(name)) as entry:
                if not entry.wait(WAIT_S):
                    raise JobError(ErrorCode.TIMEOUT, f"the model is not loaded within {WAIT_S:.0f} s")
                info = entry.served.info
            answer = {"state": "ready", "model": info.model_dump(mode="json")}
        except JobError as error:
            answer = failed(error)
        except Exception:  # every request ends with an answer
            log.exception("the model %r could not be loaded", name)
            answer = failed(JobError(ErrorCode.INTERNAL, "the worker failed; see its log"))
        answered.set_result(answer)


_requests = LoadRequests()


def failed(error: JobError) -> dict[str, Any]:
    """An answer with an error."""
    fields = ("code", "message", "field", "details")
    return {"state": "failed", "error": dict(zip(fields, error.args, strict=True))}


@control_command(name=LOAD_MODEL_COMMAND, args=[("model", str), ("ask", str)], signature="MODEL ASK")
def load_model(state: Any, model: Any = None, ask: Any = None) -> dict[str, Any]:
    """Load a model that jobs may name. Returns at once; ``state`` is loading, ready or failed."""
    if not all(isinstance(text, str) and 1 <= len(text) <= MAX_ID_CHARS for text in (model, ask)):
        return failed(JobError(ErrorCode.BAD_VALUE, "model and ask must be short texts", "model"))
    process = current_process()
    answer = _requests.answer(process.models, model, ask)
    return {"device": str(process.device), "device_warning": process.device_warning, **answer}
