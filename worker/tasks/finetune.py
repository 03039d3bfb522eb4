"""``kronos.finetune``: train and register one model."""

from typing import Any

from celery import Task

from kronos_client.contract.names import FINETUNE_TASK
from worker.app import app
from worker.process import current_process
from worker.tasks.attempt import JOB_TASK
from worker.tasks.long_attempt import LongAttempt
from worker.training.finetune_run import FinetuneRun


@app.task(name=FINETUNE_TASK, **JOB_TASK)
def finetune(self: "Task[Any, Any]", /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Train and register one model. Returns its result as JSON, or raises JobError.

    If the job itself is not at fault, it goes back to the queue, and another worker continues it.
    """
    return LongAttempt(self, current_process(), FinetuneRun).answer(args, kwargs)
