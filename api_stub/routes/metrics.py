"""Prometheus metrics: requests by route, and the queues and workers."""

from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, exposition
from starlette.types import Scope

from api_stub.backend import BackendDependency
from api_stub.keys import needs
from api_stub.routes.workers import queue_views
from kronos_client.contract.errors import JobError
from kronos_client.contract.worker_status import FinetuneWorkerStatus

router = APIRouter(tags=["operation"], dependencies=[needs("metrics")])

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
BUCKETS_S: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
PLAIN_TEXT: Final[dict[int | str, Any]] = {200: {"content": {"text/plain": {}}}}


class HttpMetrics:
    """The metrics of one app, in its own registry. Labels have few, known values."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ("method", "route")
        text = "Requests that were answered; the route is empty if none matches the address"
        counter = partial(Counter, documentation=text, labelnames=(*labels, "status"), registry=registry)
        text = "Time from a request to the end of its answer"
        histogram = partial(
            Histogram, documentation=text, labelnames=labels, buckets=BUCKETS_S, registry=registry
        )
        self._requests = counter("kronos_http_requests")
        self._request_s = histogram("kronos_http_request_seconds")
        # The names of the Kronos HTTP service, for the dashboards of its users.
        self._same_requests = counter("kronos_requests")
        self._same_request_s = histogram("kronos_request_duration_seconds")
        gauge, of_queue = partial(Gauge, registry=registry), ("queue",)
        self.waiting = gauge("kronos_http_jobs_waited_for", "Jobs that requests wait for now")
        self.queue_jobs = gauge("kronos_queue_jobs", "Jobs that wait in a queue", ("queue", "priority"))
        self.queue_delayed = gauge("kronos_queue_delayed_jobs", "Jobs that wait for their time", of_queue)
        self.queue_due = gauge("kronos_queue_due_jobs", "Those whose time has come, not taken yet", of_queue)
        text = "Those of kronos_queue_jobs that feeds' due series make"
        self.queue_of_feeds = gauge("kronos_queue_feed_jobs", text, of_queue)
        text = "Time since the oldest job that waits in a queue was sent, if our client sent it"
        self.queue_oldest_s = gauge("kronos_queue_oldest_job_seconds", text, of_queue)
        self.dead = gauge("kronos_dead_messages", "Messages in kronos:dead")
        self.workers_ready = gauge("kronos_workers_ready", "Workers of a queue that are ready", of_queue)
        self.workers = gauge("kronos_workers", "Workers of a queue that are alive, ready or not", of_queue)
        self.jobs_training = gauge("kronos_jobs_training", "Jobs that a queue's workers train now", of_queue)
        text = "Jobs that were sent while an equal one was under way or done (KRONOS_SHARE_EQUAL_JOBS)"
        self.jobs_shared = Counter("kronos_jobs_shared", text, registry=registry)
        self.redis_up = gauge("kronos_redis_up", "Whether Redis answers this service")

    def count(self, scope: Scope, status: int, elapsed_s: float) -> None:
        """Count a finished request."""
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = getattr(scope.get("route"), "path", "")
        for requests in (self._requests, self._same_requests):
            requests.labels(method, route, str(status)).inc()
        for request_s in (self._request_s, self._same_request_s):
            request_s.labels(method, route).observe(elapsed_s)


@router.get("/v1/metrics", response_class=Response, responses=PLAIN_TEXT)
@router.get("/metrics", include_in_schema=False, response_class=Response)
async def get_metrics(request: Request, backend: BackendDependency) -> Response:
    """Metrics for Prometheus. If Redis does not answer, those of queues and workers are left out."""
    shown: HttpMetrics = request.app.state.metrics
    shown.waiting.set(backend.events.num_jobs)
    of_queues = (shown.queue_jobs, shown.queue_delayed, shown.queue_due, shown.queue_oldest_s)
    for gauge in (*of_queues, shown.queue_of_feeds, shown.workers, shown.workers_ready, shown.jobs_training):
        gauge.clear()
    try:
        pool = await backend.pool()
    except JobError:
        shown.redis_up.set(0)
    else:
        shown.redis_up.set(1)
        shown.jobs_shared.reset()
        shown.jobs_shared.inc(pool.num_shared)
        shown.dead.set(pool.num_dead)
        for queue, state in pool.queues.items():
            shown.queue_delayed.labels(queue).set(state.delayed)
            shown.queue_due.labels(queue).set(state.due)
            shown.queue_oldest_s.labels(queue).set(state.oldest_s)
            shown.queue_of_feeds.labels(queue).set(state.of_feeds)
        for queue, view in queue_views(pool).items():
            shown.workers.labels(queue).set(view.workers)
            shown.workers_ready.labels(queue).set(view.ready)
            for priority, length in view.lengths.items():
                shown.queue_jobs.labels(queue, priority).set(length)
        for queue in backend.settings.queue_names.of_role("finetune"):
            shown.jobs_training.labels(queue).set(0)
        for worker in pool.workers:
            # A worker announces its job only after training has reported progress once.
            if isinstance(worker, FinetuneWorkerStatus) and worker.training is not None:
                shown.jobs_training.labels(worker.queue).inc()
    return Response(exposition.generate_latest(shown.registry), media_type=exposition.CONTENT_TYPE_LATEST)
