"""The Celery app of workers and of Flower: what differs from the clients' configuration. No torch."""

from typing import Any, Final

from celery import Celery

from kronos_client.celery_app import celery_config, use_result_backend
from kronos_client.contract.names import Role
from kronos_client.redis.result_backend import TAKEN_KEY_SETTING
from worker.settings import WorkerSettings

# Keys of our own: on kombu's default keys, the shortest visibility timeout on a database wins, and other
# apps' long tasks would be delivered twice. The same holds between workers of different roles.
UNACKED_KEYS: Final[dict[Role, str]] = {
    "forecast": "kronos.forecast.unacked",
    "finetune": "kronos.finetune.unacked",
}
UNACKED_INDEX_KEYS: Final[dict[Role, str]] = {role: f"{key}_index" for role, key in UNACKED_KEYS.items()}

# Modules that a worker imports. What forecasts needs torch, which a finetuning worker does not have.
IMPORTS: Final[dict[Role, list[str]]] = {
    "forecast": [
        "worker.lifecycle",
        "worker.tasks.forecast",
        "worker.tasks.status",
        "worker.tasks.wrong_role",
        "worker.tasks.controls",
    ],
    "finetune": [
        "worker.lifecycle",
        "worker.tasks.finetune",
        "worker.tasks.status",
        "worker.tasks.wrong_role",
    ],
}


def worker_config(settings: WorkerSettings) -> dict[str, Any]:
    """The configuration of a worker, and why it differs from Celery's defaults."""
    return celery_config(settings) | {
        "imports": IMPORTS[settings.role],
        TAKEN_KEY_SETTING: UNACKED_INDEX_KEYS[settings.role],
        # A job is acknowledged once its result is stored, so that a worker that dies loses none.
        "task_acks_late": True,
        # The same holds for a prefork child that dies. The job's record counts how often that happened.
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "task_track_started": True,
        "worker_send_task_events": True,
        "broker_connection_retry_on_startup": True,
        # Loading a model takes longer than the 4 s after which a new prefork child counts as dead.
        "worker_proc_alive_timeout": 600.0,
        # A result outlasts a Redis that is away for minutes: exponential delays, at most 10 s apart.
        "result_backend_always_retry": True,
        "result_backend_max_retries": 60,
    }


def make_worker_app(settings: WorkerSettings) -> Celery:
    """The app of this worker process; it becomes Celery's current app."""
    app = Celery("kronos", set_as_current=True)
    app.conf.update(worker_config(settings))
    use_result_backend(app)
    return app
