"""An HTTP server with the page's files and the API's answers that a test gives."""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from api_stub import page_files

PAGE = page_files.FOLDERS["/"]
HEADERS = page_files.HEADERS | {"Cache-Control": "max-age=3600"}
"""The page is opened many times: its files are read once."""


@dataclass(frozen=True)
class Request:
    """A request that the page sent."""

    method: str
    url: str
    headers: dict[str, str]
    post_data: str

    @property
    def post_data_json(self) -> Any:
        return json.loads(self.post_data)


class Route:
    """A request of the page, and the way to answer it. Has the names of Playwright's class."""

    def __init__(self, request: Request, handler: "_Handler") -> None:
        self.request = request
        self._handler = handler

    def fulfill(
        self, *, status: int = 200, json: Any = None, body: str = "", content_type: str = "application/json"
    ) -> None:
        self._handler.send(status, body if json is None else _text(json), content_type)


class FakeApi:
    """Serves the page and `answers`, which are by address below v1/ and may change at any time.

    An answer is JSON, or a function that answers the route. Other requests get none before `reset`.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self._is_over = threading.Event()
        self.reset()

    def reset(self) -> None:
        """Forget answers and requests, as before the first test."""
        self._is_over.set()
        self._is_over = threading.Event()
        self.requests: list[Request] = []
        self.answers: dict[str, Any] = {
            "workers": {"workers": [], "queues": {}},
            "models": {"models": []},
            "datasets": {"datasets": []},
        }

    def answer(self, address: str, route: Route) -> None:
        if address != "workers":
            self.requests.append(route.request)
        answer, is_over = self.answers.get(address), self._is_over
        if callable(answer):
            answer(route)
        elif answer is not None:
            route.fulfill(json=answer)
        else:
            is_over.wait()


@contextlib.contextmanager
def serve() -> Iterator[FakeApi]:
    """A server on a free port of loopback."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.api = FakeApi(server.server_port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.api
    server.api.reset()
    server.shutdown()
    server.server_close()


class _Server(ThreadingHTTPServer):
    api: FakeApi
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # the page has left
            super().handle_error(request, client_address)


class _Handler(SimpleHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".js": "text/javascript"}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, directory=str(PAGE))

    def do_GET(self) -> None:
        self._answer() if self.path.startswith("/v1/") else super().do_GET()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = self.server.api.url.rstrip("/") + self.path
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.close_connection = True  # unless it is answered
        self.server.api.answer(
            urlsplit(self.path).path.removeprefix("/v1/"),
            Route(Request(self.command, url, headers, body.decode(errors="replace")), self),
        )

    do_POST = do_DELETE = do_PUT = _answer

    def send(self, status: int, body: str, content_type: str) -> None:
        self.close_connection = False
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body.encode())))
        super().end_headers()
        self.wfile.write(body.encode())

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def _text(value: Any) -> str:
    return json.dumps(value)
