"""What operators see of this service: requests by route, and the queues and workers behind it."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.types import Scope

from api_stub.backend import BackendDependency
from api_stub.routes.health import queue_views
from kronos_client.contract.errors import JobError
from kronos_client.contract.worker_status import FinetuneWorkerStatus
from kronos_client.redis.queues import ROLE_QUEUES

router = APIRouter(tags=["operation"])

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
BUCKETS_S: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
NO_ROUTE: Final = ""
PLAIN_TEXT: Final[dict[int | str, Any]] = {200: {"content": {"text/plain": {}}}}


class HttpMetrics:
    """The metrics of one app, in a registry of its own. Labels are of a few known values only."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "kronos_http_requests",
            "Requests that were answered; of no route where there is none at the address",
            ("method", "route", "status"),
            registry=registry,
        )
        self._request_s = Histogram(
            "kronos_http_request_seconds",
            "Time from a request to the end of its answer",
            ("method", "route"),
            buckets=BUCKETS_S,
            registry=registry,
        )
        self.waiting = Gauge(
            "kronos_http_jobs_waited_for", "Jobs that requests wait for now", registry=registry
        )
        self.queue_jobs = Gauge(
            "kronos_queue_jobs", "Jobs that wait in a queue", ("queue", "priority"), registry=registry
        )
        self.workers_ready = Gauge(
            "kronos_workers_ready",
            "Workers that are ready to take from a queue",
            ("queue",),
            registry=registry,
        )
        self.workers = Gauge(
            "kronos_workers",
            "Workers of a queue that are alive, also those not ready",
            ("queue",),
            registry=registry,
        )
        self.jobs_training = Gauge(
            "kronos_jobs_training", "Jobs that a queue's workers train now", ("queue",), registry=registry
        )
        self.redis_up = Gauge("kronos_redis_up", "Whether Redis answers this service", registry=registry)

    def count(self, scope: Scope, status: int, elapsed_s: float) -> None:
        """A request that came to its end."""
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = getattr(scope.get("route"), "path", NO_ROUTE)
        self._requests.labels(method, route, str(status)).inc()
        self._request_s.labels(method, route).observe(elapsed_s)


async def _metrics(request: Request) -> HttpMetrics:
    metrics: HttpMetrics = request.app.state.metrics
    return metrics


@router.get("/v1/metrics", response_class=Response, responses=PLAIN_TEXT)
@router.get("/metrics", include_in_schema=False, response_class=Response)
async def metrics(backend: BackendDependency, known: Annotated[HttpMetrics, Depends(_metrics)]) -> Response:
    """For Prometheus. Where Redis does not answer, what it would tell is left out."""
    known.waiting.set(backend.num_waiting)
    for gauge in (known.queue_jobs, known.workers, known.workers_ready, known.jobs_training):
        gauge.clear()
    try:
        pool = await backend.pool()
    except JobError:
        known.redis_up.set(0)
    else:
        known.redis_up.set(1)
        for queue, view in queue_views(pool).items():
            known.workers.labels(queue).set(view.workers)
            known.workers_ready.labels(queue).set(view.ready)
            for priority, length in view.lengths.items():
                known.queue_jobs.labels(queue, priority).set(length)
        for queue in ROLE_QUEUES["finetune"]:
            training = (
                worker.training
                for worker in pool.workers
                if isinstance(worker, FinetuneWorkerStatus) and worker.queue == queue
            )
            # An announcement has the job only from its training's first word on.
            known.jobs_training.labels(queue).set(sum(job is not None for job in training))
    return Response(generate_latest(known.registry), media_type=CONTENT_TYPE_LATEST)
