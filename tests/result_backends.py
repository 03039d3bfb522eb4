"""Our result backend, set up as a worker's process does it."""

from celery import Celery

from kronos_client.redis.job_store import JobStore
from kronos_client.redis.queues import DeliveryKeys
from worker.broker.connecting import redis_of
from worker.broker.outcomes import Outcomes
from worker.broker.result_backend import CodedRedisBackend
from worker.config import RESULT_BACKENDS


def with_result_backend(app: Celery, keys: DeliveryKeys | None = None) -> CodedRedisBackend:
    """Have an app of a test store states by our backend."""
    app.loader.override_backends = RESULT_BACKENDS
    backend: CodedRedisBackend = app.backend  # type: ignore[assignment]
    backend.store = JobStore(redis_of(app.conf.broker_url), app.conf.result_expires, keys)
    backend.outcomes = Outcomes(backend.store)
    return backend
