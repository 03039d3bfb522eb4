"""ForecastClient: enqueue forecasts and finetuning from any app, without torch.

Such as:

    with ForecastClient("redis://127.0.0.1:6379/0") as client:
        result = client.forecast(df, pred_len=96, sample_count=20)
    result.series[0].frame()
"""

import time
from typing import Any, Final

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from kronos_client.celery_app import make_app
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import CELERY_PRIORITIES, Priority
from kronos_client.contract.worker_status import AnyWorkerStatus
from kronos_client.core.base import BaseClient
from kronos_client.core.handle import FinetuneHandle, FinetuneState, ForecastHandle, JobState
from kronos_client.core.many import ForecastOutcome
from kronos_client.core.result_events import Endings, RedisEndings
from kronos_client.core.result_store import CeleryOutcome, Outcome, reachable
from kronos_client.redis.admission import Admission
from kronos_client.redis.connection import connect
from kronos_client.redis.job_store import JobStore
from kronos_client.redis.routing import jobs_per_s, live_workers
from kronos_client.settings import ClientSettings, get_settings

__all__ = [
    "FinetuneHandle",
    "FinetuneState",
    "ForecastClient",
    "ForecastHandle",
    "ForecastOutcome",
    "JobState",
]

WORKERS_KNOWN_FOR_S: Final = 1.0


class ForecastClient(BaseClient):
    """Enqueues forecast and finetuning jobs and waits for their results. May be shared between threads.

    Args:
        url: the workers' Redis; ``KRONOS_REDIS_URL`` where left out.
        settings: limits and lifetimes, as the workers have them; from the environment where left out.
    """

    def __init__(self, url: str | None = None, *, settings: ClientSettings | None = None) -> None:
        settings = settings or get_settings()
        if url is not None:
            settings = settings.with_redis_url(url)
        super().__init__(settings)
        self._app = make_app(settings)
        self._redis = connect(self.redis_url)
        self._records = JobStore(self._redis, settings.result_ttl_s)
        self._admission = Admission(
            self._redis, result_ttl_s=settings.result_ttl_s, max_queue_jobs=settings.max_queue_jobs
        )
        self._workers: list[AnyWorkerStatus] = []
        self._workers_read_at = float("-inf")

    def close(self) -> None:
        """Give up the connections; handles that are left cannot be waited for any more."""
        backend: Any = self._app.backend
        consumer = backend.result_consumer
        consumer.stop()
        # Else a handle that is collected later unsubscribes, and reconnects for it, up to 20 s long.
        consumer.subscribed_to.clear()
        self._app.close()
        self._redis.close()

    def workers(self) -> list[AnyWorkerStatus]:
        """The status of every live worker, as announced."""
        with reachable():
            return live_workers(self._redis)

    def _known_workers(self) -> list[AnyWorkerStatus]:
        """The live workers, read at most once a second."""
        now = time.monotonic()
        if now - self._workers_read_at > WORKERS_KNOWN_FOR_S:
            self._workers = self.workers()
            self._workers_read_at = now
        return self._workers

    def _enqueue(
        self, task: str, payload: dict[str, Any], job_id: str, queue: str, priority: Priority, shown: str
    ) -> None:
        with reachable():
            submitted_at = self._admission.admit(
                job_id, payload, queue, lambda: jobs_per_s(queue, self._known_workers())
            )
        if submitted_at is None:
            return
        try:
            self._app.send_task(
                task,
                kwargs={"job": payload | {"submitted_at": submitted_at}},
                task_id=job_id,
                queue=queue,
                priority=CELERY_PRIORITIES[priority],
                # By default Celery repeats the arguments, candles and all, in headers and events.
                argsrepr="()",
                kwargsrepr=shown,
                retry=False,
            )
        except (OperationalError, RedisError) as error:
            raise JobError(
                ErrorCode.ENQUEUE_UNCERTAIN,
                f"whether the job was enqueued is not known ({type(error).__name__}); submit it again with "
                "the same job_id",
                None,
                {"job_id": job_id},
            ) from error

    def _outcome(self, job_id: str) -> Outcome:
        return CeleryOutcome(self._app.AsyncResult(job_id), self._records)

    def _endings(self) -> Endings:
        return RedisEndings(self._redis)
