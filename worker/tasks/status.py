"""The task ``kronos.status``; inference/forecast_process.py fills in a device and its warnings."""

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import STATUS_TASK
from kronos_client.redis.routing import live_workers
from kronos_model.text import dotted
from worker.app import app
from worker.process import WorkerProcess


@app.task(name=STATUS_TASK)
def status(*args: object, **kwargs: object) -> dict[str, object]:
    """``{"workers": [...]}``: this process's present status, then the others as announced.

    Raises:
        JobError: UNKNOWN_FIELD for any argument.
    """
    if args or kwargs:
        field = dotted((min(kwargs),)) if kwargs else None
        raise JobError(ErrorCode.UNKNOWN_FIELD, f"{STATUS_TASK} takes no arguments: send none", field)
    process = WorkerProcess.current()
    others = [worker for worker in live_workers(process.redis) if worker.node != process.node]
    return {"workers": [worker.as_json() for worker in (process.status(), *others)]}
