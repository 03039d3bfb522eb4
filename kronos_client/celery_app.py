"""A Celery app on our queues, and the configuration that all such apps share. Our clients need neither."""

from typing import Any

import kombu
from celery import Celery
from celery.app.amqp import AMQP

from kronos_client.contract.names import CELERY_PRIORITIES, CONTROL_EXCHANGE
from kronos_client.redis.connection import ANSWER_TIMEOUT_S
from kronos_client.redis.queues import PRIORITY_STEPS
from kronos_client.redis.routing import TaskRouter
from kronos_client.redis.url import SentinelUrl, split_credentials, tls_options
from kronos_client.settings import ClientSettings


def exchanges(settings: ClientSettings) -> dict[str, str]:
    """Exchanges of our own for control commands and events. All apps on a database share Celery's."""
    if settings.shared_exchanges:
        return {}
    control, events = f"{settings.queue_prefix}{CONTROL_EXCHANGE}", settings.event_exchange
    return {"control_exchange": control, "event_exchange": events, "event_queue_prefix": events}


class Connection(kombu.Connection):
    """kombu's connection, with the credentials of ``UrlCredentials``."""

    def __init__(self, hostname: Any = "localhost", *args: Any, **kwargs: Any) -> None:
        credentials = (kwargs.get("transport_options") or {}).get("credential_provider")
        given = {} if credentials is None else {"credential_provider": credentials}
        super().__init__(hostname, *args, **given | kwargs)


class Amqp(AMQP):
    """Makes an app connect by our ``Connection``."""

    Connection = Connection


def celery_config(settings: ClientSettings) -> dict[str, Any]:
    """The settings that differ from Celery's defaults in every app on these queues."""
    url = settings.redis_url.get_secret_value()
    bare, credentials = split_credentials(url)
    broker_url, of_sentinel = url, dict[str, Any]()
    if sentinel := SentinelUrl.from_url(url):
        from kronos_client.redis.sentinel import sentinel_options

        broker_url = sentinel.celery_url()
        bare = f"sentinel:///{sentinel.database}"
        of_sentinel = {"master_name": sentinel.service, "sentinel_kwargs": sentinel_options(sentinel)}
    return {
        "broker_url": broker_url,
        "result_backend": bare,
        "redis_backend_credential_provider": credentials.get("credential_provider"),
        # Flower reads TLS from here alone; the others read it from the URL.
        "broker_use_ssl": tls_options(url) or False,
        # JSON only, in both directions: nothing from outside is unpickled.
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "result_accept_content": ["json"],
        "task_default_queue": settings.queue_names.on_device("cpu"),
        "task_routes": (TaskRouter(url, settings.queue_names),),
        "task_default_priority": CELERY_PRIORITIES["normal"],
        "task_send_sent_event": True,
        **exchanges(settings),
        "broker_transport_options": {
            # Flower takes messages with kombu. On kombu's default keys it would requeue other apps' jobs.
            "unacked_key": "kronos.unacked",
            "unacked_index_key": "kronos.unacked_index",
            "unacked_mutex_key": "kronos.unacked_mutex",
            "queue_order_strategy": "priority",
            "priority_steps": list(PRIORITY_STEPS),
            # Without these, a half-open connection would block for ever.
            "socket_timeout": ANSWER_TIMEOUT_S,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 25,
            **credentials,
            **of_sentinel,
        },
        "redis_socket_timeout": ANSWER_TIMEOUT_S,
        "redis_socket_connect_timeout": 5.0,
        "redis_socket_keepalive": True,
        "redis_backend_health_check_interval": 25,
        "result_expires": settings.result_ttl_s,
    }


def make_app(settings: ClientSettings) -> Celery:
    """An app that sends tasks and control commands. The host's own app stays the current one."""
    app = Celery("kronos", amqp=Amqp, set_as_current=False)
    app.conf.update(celery_config(settings))
    return app
