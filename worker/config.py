"""The Celery configuration of workers and of Flower. No torch."""

from typing import Final

from celery import Celery

from kronos_client.celery_app import celery_config
from kronos_client.contract.names import Role
from worker.settings import WorkerSettings

_BACKENDS: Final = "worker.broker.result_backend"
RESULT_BACKENDS: Final = {
    **dict.fromkeys(("redis", "rediss"), f"{_BACKENDS}:CodedRedisBackend"),
    "sentinel": f"{_BACKENDS}:CodedSentinelBackend",
}

AMQP: Final = "worker.broker.connecting:Amqp"
CONTROL: Final = "worker.broker.connecting:Control"

# Modules of ``worker.tasks`` that a worker imports. Those for forecasts need torch, which a finetuning worker
# does not have.
IMPORTS: Final[dict[Role, tuple[str, ...]]] = {
    "forecast": ("forecast", "feed_append", "status", "other_role", "celery_controls", "controls"),
    "finetune": ("long_jobs", "feed_append", "status", "other_role", "celery_controls"),
}


def worker_config(settings: WorkerSettings) -> dict[str, object]:
    """The clients' configuration, and a worker's on top of it."""
    return celery_config(settings) | {
        "imports": ["worker.lifecycle", *(f"worker.tasks.{name}" for name in IMPORTS[settings.role])],
        "result_backend_thread_safe": True,
        # A job is acknowledged after its result is stored: a worker that dies loses no job.
        "task_acks_late": True,
        "worker_prefetch_multiplier": 0,  # no limit: the transport takes what there is room for
        "task_track_started": True,
        "worker_send_task_events": True,
        "worker_disable_rate_limits": True,  # they would hold jobs beyond their deadlines, and a shutdown
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
    }


def make_worker_app(settings: WorkerSettings) -> Celery:
    """Make this process's app, which becomes Celery's current app."""
    app = Celery("kronos", amqp=AMQP, control=CONTROL, set_as_current=True)
    app.conf.update(worker_config(settings))
    app.loader.override_backends = RESULT_BACKENDS
    return app
