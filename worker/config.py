"""The Celery configuration of workers and of Flower. No torch."""

from typing import Any, Final

from celery import Celery

from kronos_client.celery_app import celery_config
from kronos_client.contract.names import Role
from kronos_client.redis.queues import DELIVERY_KEYS
from worker.settings import WorkerSettings

RESULT_BACKEND: Final = "worker.broker.result_backend:CodedRedisBackend"

AMQP: Final = "worker.broker.connecting:Amqp"

DELIVERY_KEYS_SETTING: Final = "kronos_delivery_keys"
"""A Celery setting of ours, for the result backend: an argument of its ``JobStore``."""

# Modules of ``worker.tasks`` that a worker imports. Those for forecasts need torch, which a finetuning worker
# does not have.
BOTH_IMPORT: Final = ("celery_controls", "status", "wrong_role")
IMPORTS: Final[dict[Role, tuple[str, ...]]] = {
    "forecast": (*BOTH_IMPORT, "forecast", "controls"),
    "finetune": (*BOTH_IMPORT, "finetune", "backtest"),
}


def worker_config(settings: WorkerSettings) -> dict[str, Any]:
    """The clients' configuration, and a worker's on top of it."""
    return celery_config(settings) | {
        "imports": ["worker.lifecycle", *(f"worker.tasks.{name}" for name in IMPORTS[settings.role])],
        "result_backend_thread_safe": True,
        DELIVERY_KEYS_SETTING: DELIVERY_KEYS[settings.role],
        # A job is acknowledged after its result is stored: a worker that dies loses no job.
        "task_acks_late": True,
        "worker_prefetch_multiplier": 0,  # no limit: the transport takes what there is room for
        "task_track_started": True,
        "worker_send_task_events": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
    }


def make_worker_app(settings: WorkerSettings) -> Celery:
    """Make this process's app, which becomes Celery's current app."""
    app = Celery("kronos", amqp=AMQP, set_as_current=True)
    app.conf.update(worker_config(settings))
    use_result_backend(app)
    return app


def use_result_backend(app: Celery) -> None:
    """Make the app store and read results with our backend."""
    app.loader.override_backends = dict.fromkeys(("redis", "rediss"), RESULT_BACKEND)
