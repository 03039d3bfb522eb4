"""``python -m api_stub``: serve the app with uvicorn. ``kronos api`` runs this too."""

import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.config import LOGGING_CONFIG, STARTUP_FAILURE

from api_stub.main import create_app
from api_stub.settings import ApiSettings
from kronos_client.contract.errors import JobError
from kronos_client.logs import uvicorn_config
from kronos_client.otel.setup import export_metrics, export_traces
from kronos_client.redis.connection import connect, refuse_unusable
from kronos_client.settings import SettingsError

SERVICE = "kronos-api"
STOP_S = 10
"""Seconds for requests under way, such as uploads, to finish once the service is asked to stop."""


class Server(uvicorn.Server):
    """A uvicorn server that answers requests waiting for jobs as soon as it stops. The jobs go on."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all waiting, then shut down. uvicorn signals the app only after all requests are answered."""
        assert isinstance(self.config.app, FastAPI)
        self.config.app.state.backend.events.release()
        await super().shutdown(sockets)


def log_config(settings: ApiSettings) -> dict[str, Any]:
    """uvicorn's log configuration in the chosen format, extended to all other loggers."""
    if settings.log_format == "json":
        return uvicorn_config(LOGGING_CONFIG)
    return {**LOGGING_CONFIG, "root": {"level": "INFO", "handlers": ["default"]}}


def main() -> None:
    """Serve until a signal stops the process."""
    try:
        settings = ApiSettings.load()
        with connect(settings.redis_url.get_secret_value()) as redis:
            refuse_unusable(redis)
        export_traces(SERVICE)
        app = create_app(settings)
        export_metrics(SERVICE, app.state.metrics.registry)
    except (SettingsError, JobError) as error:
        sys.exit(str(error))
    config = uvicorn.Config(
        app,
        host=settings.api_host,
        port=settings.api_port,
        log_config=log_config(settings),
        access_log=False,  # RequestLog writes a line for each request, with the job's id
        server_header=False,
        ws="none",  # no route has one, whatever packages are installed
        proxy_headers=False,  # a sender could forge the address that a request comes from
        timeout_graceful_shutdown=STOP_S,
    )
    server = Server(config)
    server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)


if __name__ == "__main__":
    main()
