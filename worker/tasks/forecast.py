"""``kronos.forecast``: one job from the queue to its one outcome.

``ForecastJobs`` computes the jobs, without a thread of Celery's pool for each. Only a job with callbacks or a
chain has such a thread, in which Celery's own tracer sends them.
"""

from concurrent.futures import Future
from functools import cache
from typing import Any

from celery import Task
from celery.app.task import Context

from kronos_client.contract.names import FORECAST_TASK
from worker.app import app
from worker.broker.service_order import needs_thread
from worker.inference.pools import HandedOver
from worker.process import current_process
from worker.tasks.attempt import JOB_TASK, ClaimedRequest
from worker.tasks.forecast_attempt import ForecastAttempt
from worker.tasks.forecast_jobs import ForecastJobs


@cache
def forecast_jobs() -> ForecastJobs:
    """Those of this process."""
    process = current_process()
    process.jobs = jobs = ForecastJobs(process)
    return jobs


class ForecastRequest(ClaimedRequest, HandedOver):
    """Celery's request (5.7) for a forecast."""

    request_dict: dict[str, Any]
    _payload: Any

    def hand_over(self) -> bool:
        if needs_thread(self._payload):
            return False
        args, kwargs, _ = self._payload
        jobs, context = forecast_jobs(), Context(self.request_dict)
        jobs.add(ForecastAttempt(jobs, context, args, kwargs, request=self))
        return True


@app.task(name=FORECAST_TASK, **JOB_TASK | {"Request": ForecastRequest})
def forecast(self: "Task[Any, Any]", /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Wait for one job, which has callbacks or a chain. Returns its result as JSON, or raises JobError."""
    jobs, waiter = forecast_jobs(), Future[dict[str, Any]]()
    jobs.add(ForecastAttempt(jobs, self.request, args, kwargs, waiter=waiter))
    result = waiter.result()
    self.request.update(finished=result)  # for the result backend
    return result
