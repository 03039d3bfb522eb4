"""The task ``kronos.status``."""

from typing import Any

from celery import Task

from kronos_client.contract.names import STATUS_TASK
from kronos_client.redis.routing import live_workers
from worker.app import app
from worker.process import current_process


@app.task(name=STATUS_TASK, bind=True)
def status(self: "Task[Any, Any]") -> dict[str, Any]:
    """``{"workers": [...]}``: this process's present status, then the others as announced."""
    process = current_process()
    others = [worker for worker in live_workers(process.redis) if worker.node != process.node]
    return {"workers": [worker.as_json() for worker in (process.status(), *others)]}
