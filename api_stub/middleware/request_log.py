"""One log line and one count in the metrics for each request, even if it fails."""

import asyncio
import logging
import time
import uuid
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api_stub.addresses import METRICS, PROBES, address_of
from api_stub.problems import HttpCode, HttpError
from api_stub.routes.metrics import HttpMetrics
from kronos_client.contract.errors import ErrorCode

log = logging.getLogger(__name__)

MAX_PATH_CHARS: Final = 200
DISCONNECTED: Final = 499
"""nginx's status for a client that closed the connection before the answer."""
QUIET: Final = frozenset({*PROBES, *METRICS})
MAX_ID_CHARS: Final = 128


class RequestLog:
    """The outermost middleware: request ids, the log, the metrics, and an answer to unexpected errors."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _request_id(scope)
        address = address_of(scope)  # before routing changes the scope
        status = 0
        job_id = ""

        async def send_noted(message: Message) -> None:
            nonlocal status, job_id
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                headers.setdefault("X-Content-Type-Options", "nosniff")
                path_id = scope.get("path_params", {}).get("job_id")
                if path_id is not None and path_id.isascii() and path_id.isprintable():
                    headers.setdefault("X-Job-Id", path_id)
                job_id = headers.get("X-Job-Id", "")
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except ClientDisconnect:
            status = status or DISCONNECTED
        except asyncio.CancelledError:  # the server is stopping and its grace period is over
            if not status:
                message = "the service is stopping; send the request again"
                await HttpError(HttpCode.OVERLOADED, message).response()(scope, receive, send_noted)
            raise
        except Exception:
            # A defect must still be answered, and the answer must not reveal its cause.
            log.exception("request %s failed", request_id)
            if status:
                raise  # part of the answer is sent: the server closes the connection
            message = "the service failed; see its log, and report it with the X-Request-Id"
            await HttpError(ErrorCode.INTERNAL, message).response()(scope, receive, send_noted)
        finally:
            elapsed_s = time.perf_counter() - started
            self._metrics.count(scope, status or DISCONNECTED, elapsed_s)
            path = scope.get("raw_path", b"").decode("ascii", "replace")[:MAX_PATH_CHARS]
            log.log(
                logging.DEBUG if address in QUIET and status < 400 else logging.INFO,
                "%s %s %d %.0f ms job=%s request=%s",
                scope["method"],
                path,
                status or DISCONNECTED,
                1000 * elapsed_s,
                job_id or "-",
                request_id,
                extra={"job_id": job_id or None, "request_id": request_id},
            )


def _request_id(scope: Scope) -> str:
    """The sender's request id if a log line and a header can hold it, else a new one."""
    given = Headers(scope=scope).get("x-request-id", "")
    is_fit = 1 <= len(given) <= MAX_ID_CHARS and given.isascii() and given.isprintable() and " " not in given
    return given if is_fit else uuid.uuid4().hex
