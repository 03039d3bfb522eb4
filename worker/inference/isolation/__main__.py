"""``python -m worker.inference.isolation``: compute jobs that a worker sends, one at a time, while it lives.

On standard input comes a line on the worker (``host.py``), then one for each job: ``job_id``, ``payload``,
``receipt``, ``queue``. On standard output goes an event a line: ``ready`` or ``unavailable``, then for each
job ``progress`` and at last ``result`` or ``error``. Both are JSON.
"""

import json
import logging
import os
import queue
import signal
import sys
import threading
from typing import IO, Any

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.job_store import Receipt
from kronos_model.errors import KronosError
from worker.inference.executor import compute
from worker.inference.isolation.host import QuarantineHost
from worker.settings import get_settings

log = logging.getLogger(__name__)


class Worker:
    """The process that wants the jobs computed; as ``forecasting.Overseer``."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="worker", daemon=True).start()

    def next(self) -> dict[str, Any]:
        """What it told next."""
        return self._told.get()

    def say(self, event: str, **info: Any) -> None:
        """Tell it something."""
        self._stdout.write(json.dumps({"event": event, **info}) + "\n")
        self._stdout.flush()

    def is_cancelled(self) -> bool:
        """Never: then this process is killed."""
        return False

    def tell(self, bars_done: int, bars_total: int) -> None:
        """How far a job is."""
        self.say("progress", bars_done=bars_done, bars_total=bars_total)

    def _read(self) -> None:
        for line in self._stdin:
            self._told.put(json.loads(line))
        os._exit(0)  # it is gone


def run(worker: Worker) -> None:
    """Load, then compute jobs until the worker is gone."""
    try:
        host = QuarantineHost(get_settings(), worker.next())
    except KronosError as error:
        worker.say("unavailable", error=JobError.from_kronos(error).args)
        raise SystemExit(1) from None
    worker.say("ready")
    while True:
        told = worker.next()
        job_id, receipt = told["job_id"], Receipt(**told["receipt"])
        try:
            result = compute(host, job_id, told["payload"], receipt, told["queue"], worker)
            worker.say("result", result=result)
        except JobError as error:
            worker.say("error", error=error.args)
        except Exception:  # the last line of defence, as in the worker
            log.exception("job %s failed on a defect", job_id)
            defect = JobError(ErrorCode.INTERNAL, "a defect in the worker; report it with the job's id")
            worker.say("error", error=defect.args)


def main() -> None:
    """What libraries print must not come between the events."""
    stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Whoever ends all processes of a worker by these leaves this one to it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    run(Worker(sys.stdin, stdout))


if __name__ == "__main__":
    main()
