"""``python -m worker.inference.isolation_child``: computes suspects one at a time, until the worker ends.

The first message describes the worker, as ``ForecastProcess._hello``. Each later one is a job: ``job_id``,
``job``, ``receipt``, ``queue``. The events are ``ready`` or ``unavailable``, then for each job any number of
``progress`` and one ``result`` or ``error``.
"""

import logging
import os
import signal
import sys
import threading
from contextlib import closing
from typing import Final

from kronos_client.contract.errors import JobError
from kronos_client.contract.forecast import ForecastJob
from kronos_client.redis.job_store import Receipt
from kronos_model.devices.resolution import resolve_device
from kronos_model.errors import DeviceError, KronosError, OutOfMemory
from kronos_model.processes.json_child import Event, JsonParent
from worker.broker.result_backend import coded
from worker.inference.executor import Computation
from worker.inference.forced_shutdown import EXIT_STATUS
from worker.inference.isolation import EXIT_IDLE
from worker.inference.model_server import ModelServer
from worker.settings import WorkerSettings, get_settings

log = logging.getLogger(__name__)

IDLE_S: Final = 30.0
CHECK_INTERVAL_S: Final = 1.0
MAX_SLOTS: Final = 64
"""Few: the worker's own engines use the memory. A job of more paths runs in rounds, with the same result."""


def load_server(settings: WorkerSettings, hello: Event) -> ModelServer:
    """Load the worker's models a second time, so that results are the same.

    Raises:
        KronosError: The device, the memory or the checkpoint is not available.
    """
    device, warning = resolve_device(hello["device"])
    if warning is not None:
        raise DeviceError(warning)
    settings = settings.model_copy(update={"max_slots": min(settings.max_slots or MAX_SLOTS, MAX_SLOTS)})
    given = (hello["node"], device, hello["device_warning"], hello["num_threads"])
    server = ModelServer(settings, *given, engines=hello["engines"], on_death=lambda: os._exit(EXIT_STATUS))
    server.load()
    if server.device != device:
        raise OutOfMemory(str(server.device_warning))
    return server


def compute(server: ModelServer, worker: JsonParent, message: Event) -> dict[str, object]:
    """Compute a job. Returns its result as JSON, or raises JobError."""
    job, receipt = ForecastJob.model_validate(message["job"]), Receipt(**message["receipt"])
    given = (server, message["job_id"], job, receipt, message["queue"])
    changed = threading.Event()
    with closing(Computation(*given, "normal", changed.set, server.engine_thread.submit)) as computation:
        while not computation.advance():
            changed.wait(CHECK_INTERVAL_S)
            changed.clear()
            if (progress := computation.new_progress()) is not None:
                worker.send("progress", **progress.as_json())
        return computation.result().model_dump(mode="json")


def run(worker: JsonParent, hello: Event) -> None:
    """Load the models, then compute jobs until the worker ends or sends none for a while."""
    try:
        server = load_server(get_settings(), hello)
    except KronosError as error:
        worker.send("unavailable", error=JobError.from_kronos(error).args)
        raise SystemExit(1) from None
    worker.send("ready")
    while True:
        try:
            message = worker.next_message(IDLE_S)
        except TimeoutError:
            os._exit(EXIT_IDLE)
        try:
            worker.send("result", result=compute(server, worker, message))
        except JobError as error:
            worker.send("error", error=error.args)
        except Exception as error:  # as in the worker's task: every error needs a code
            log.exception("job %s failed because of a defect in this software", message["job_id"])
            worker.send("error", error=coded(error).args)


if __name__ == "__main__":
    parent = JsonParent()
    # A signal to all processes of a worker must not end this one: the worker ends it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    run(parent, parent.next_message())
