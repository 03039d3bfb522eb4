"""How our Celery apps are configured: the workers' and Flower's, and each client's own. No torch."""

from typing import Any, Final

from celery import Celery

from worker.contract.names import CELERY_PRIORITIES, CPU_QUEUE, Role
from worker.messaging.queues import PRIORITY_STEPS
from worker.routing import TaskRouter
from worker.settings import Settings
from worker.tls import tls_options

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
        "worker.bootstrap",
        "worker.tasks.forecast",
        "worker.tasks.status",
        "worker.tasks.elsewhere",
        "worker.controls",
    ],
    "finetune": [
        "worker.bootstrap",
        "worker.tasks.finetune",
        "worker.tasks.status",
        "worker.tasks.elsewhere",
    ],
}

RESULT_BACKEND: Final = "worker.result_backend:CodedRedisBackend"


def celery_config(settings: Settings) -> dict[str, Any]:
    """What differs from Celery's defaults, and why."""
    url = settings.redis_url.get_secret_value()
    return {
        "broker_url": url,
        "result_backend": url,
        # The URL says it to everybody else; Flower hears it here alone.
        "broker_use_ssl": tls_options(url) or False,
        # JSON only, in both directions: nothing from outside is unpickled.
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "result_accept_content": ["json"],
        "imports": IMPORTS[settings.role],
        # A job is acknowledged once its result is stored, so that a worker that dies loses none.
        "task_acks_late": True,
        # Nor does a prefork child that dies: how often that may happen to a job, its record says.
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "task_default_queue": CPU_QUEUE,
        "task_routes": (TaskRouter(url),),
        "task_default_priority": CELERY_PRIORITIES["normal"],
        "task_track_started": True,
        "worker_send_task_events": True,
        "task_send_sent_event": True,
        "broker_connection_retry_on_startup": True,
        "broker_transport_options": {
            # For what Flower takes by kombu's own means; on kombu's keys it would see to other apps' jobs.
            "unacked_key": "kronos.unacked",
            "unacked_index_key": "kronos.unacked_index",
            "unacked_mutex_key": "kronos.unacked_mutex",
            "queue_order_strategy": "priority",
            "priority_steps": list(PRIORITY_STEPS),
            # Without these a half-open connection is waited on for ever.
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 25,
        },
        "redis_socket_timeout": 30.0,
        "redis_socket_connect_timeout": 5.0,
        "redis_socket_keepalive": True,
        "redis_backend_health_check_interval": 25,
        "result_expires": settings.result_ttl_s,
        # Loading a model takes longer than the 4 s after which a new prefork child counts as dead.
        "worker_proc_alive_timeout": 600.0,
    }


WORKER_CONFIG: Final = {
    # A forecast that is done outlasts a Redis that is away for minutes: exponential, at most 10 s apart.
    "result_backend_always_retry": True,
    "result_backend_max_retries": 60,
}


CLIENT_ANSWER_S: Final = 10
"""How long a client waits for Redis's answer to a message that it sends, before it says that it has none."""
CLIENT_LOOK_S: Final = 5.0
"""How long for its answer about a job; redis-py asks four times before a client says that it has none."""


def make_app(settings: Settings, *, for_worker: bool = False) -> Celery:
    """A Celery app for these settings.

    A client's leaves its host's own app the current one, and answers within seconds when Redis is away.
    """
    app = Celery("kronos", set_as_current=for_worker)
    app.conf.update(celery_config(settings))
    if for_worker:
        app.conf.update(WORKER_CONFIG)
    else:
        app.conf.broker_transport_options["socket_timeout"] = CLIENT_ANSWER_S
        app.conf.redis_socket_timeout = CLIENT_LOOK_S
    app.loader.override_backends = dict.fromkeys(("redis", "rediss"), RESULT_BACKEND)
    return app
