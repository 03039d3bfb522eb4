"""The task ``kronos.status``."""

from kronos_client.contract.names import STATUS_TASK
from kronos_client.redis.routing import live_workers
from worker.app import app
from worker.celery_types import AnyTask
from worker.process import WorkerProcess


@app.task(name=STATUS_TASK, bind=True)
def status(self: AnyTask) -> dict[str, object]:
    """``{"workers": [...]}``: this process's present status, then the others as announced."""
    process = WorkerProcess.current()
    others = [worker for worker in live_workers(process.redis) if worker.node != process.node]
    return {"workers": [worker.as_json() for worker in (process.status(), *others)]}
