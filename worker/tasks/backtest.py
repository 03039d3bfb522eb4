"""``kronos.backtest``: forecast windows of the past with jobs of low priority, and score them."""

from typing import Any

from celery import Task

from kronos_client.contract.names import BACKTEST_TASK
from worker.app import app
from worker.process import current_process
from worker.tasks.attempt import JOB_TASK
from worker.tasks.long_attempt import LongAttempt
from worker.training.backtest_run import BacktestJobRun


@app.task(name=BACKTEST_TASK, **JOB_TASK)
def backtest(self: "Task[Any, Any]", /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Run one backtest. Returns its result as JSON, or raises JobError.

    If the job itself is not at fault, it goes back to the queue, and another worker continues it.
    """
    return LongAttempt(self, current_process(), BacktestJobRun).answer(args, kwargs)
