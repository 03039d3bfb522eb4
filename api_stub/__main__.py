"""``python -m api_stub``: serve the app with uvicorn. ``kronos api`` runs this too."""

import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.config import LOGGING_CONFIG, STARTUP_FAILURE

from api_stub.main import create_app
from api_stub.settings import ApiSettings, get_settings
from kronos_client.logs import uvicorn_config
from kronos_client.settings import SettingsError

STOP_S = 10
"""That requests under way, such as uploads, have when the service is told to end."""


class Server(uvicorn.Server):
    """uvicorn's. Who waits for a job when it is told to end is answered at once: the job goes on."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, which tells the app only once all requests are answered."""
        self._app.state.backend.release()
        await super().shutdown(sockets)


def log_config(settings: ApiSettings) -> dict[str, Any]:
    """uvicorn's, in the form that is set, for all other loggers too."""
    if settings.log_format == "json":
        return uvicorn_config(LOGGING_CONFIG)
    return {**LOGGING_CONFIG, "root": {"level": "INFO", "handlers": ["default"]}}


def main() -> None:
    """Serve until told to end."""
    try:
        settings = get_settings()
        app = create_app(settings)
    except SettingsError as error:
        sys.exit(str(error))
    config = uvicorn.Config(
        app,
        host=settings.api_host,
        port=settings.api_port,
        log_config=log_config(settings),
        # Each request has its line already, with the job's id.
        access_log=False,
        server_header=False,
        # Whoever is in front may not say where a request comes from.
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_S,
    )
    server = Server(config, app)
    server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)


if __name__ == "__main__":
    main()
