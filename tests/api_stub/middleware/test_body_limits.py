"""Bodies that are too large, and those that stop arriving."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api_stub.backend import Backend
from api_stub.main import create_app
from api_stub.settings import ApiSettings
from tests.api_stub.conftest import ADDRESS, series

Receive = Callable[[], Awaitable[dict[str, Any]]]
PATHS = ["/v1/forecasts", "/v1/datasets"]


def answer_to(settings: ApiSettings, path: str, receive: Receive) -> list[dict[str, Any]]:
    """What the app sends. It is called directly, because the test client only sends whole bodies."""
    messages: list[dict[str, Any]] = []

    async def send(message):
        messages.append(message)

    async def ask():
        app = create_app(settings)
        media_type = b"text/csv" if path == "/v1/datasets" else b"application/json"
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
            "raw_path": path.encode(), "query_string": b"name=a.csv", "root_path": "",
            "headers": [(b"host", b"localhost"), (b"content-type", media_type)],
            "server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 1),
        }  # fmt: skip
        async with Backend(settings) as backend:
            app.state.backend = backend
            await app(scope, receive, send)

    asyncio.run(ask())
    return messages


def test_a_body_with_too_large_a_content_length_is_refused(settings):
    small = settings.model_copy(update={"api_max_body_bytes": 1024})
    with TestClient(create_app(small), base_url=ADDRESS) as http:
        answer = http.post("/v1/predict/single", json=series(num_candles=50))
        assert (answer.status_code, answer.json()["code"]) == (413, "BODY_TOO_LARGE")
        assert answer.json()["details"] == {"limit": 1024}


@pytest.mark.parametrize(("path", "limit"), [("/v1/forecasts", 1024), ("/v1/datasets", 4096)])
def test_an_endless_body_is_refused_while_it_arrives(settings, path, limit):
    small = settings.model_copy(update={"api_max_body_bytes": 1024, "api_max_upload_bytes": 4096})
    num_bytes = 0

    async def receive():
        nonlocal num_bytes
        num_bytes += 512
        assert num_bytes < 2**20, "the app reads on"
        return {"type": "http.request", "body": b"[" * 512, "more_body": True}

    assert answer_to(small, path, receive)[0]["status"] == 413
    assert limit < num_bytes <= limit + 512
    assert not list(settings.data_folder.rglob("*"))


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_stops_arriving_is_refused_and_its_connection_closed(settings, path):
    impatient = settings.model_copy(update={"api_body_timeout_s": 0.2})
    num_parts = 0

    async def receive():
        nonlocal num_parts
        num_parts += 1
        await asyncio.sleep(0.08 if num_parts < 6 else 60)  # slower in all than the limit for one pause
        return {"type": "http.request", "body": b"[[", "more_body": True}

    start, body = answer_to(impatient, path, receive)
    assert (start["status"], dict(start["headers"])[b"connection"]) == (408, b"close")
    problem = json.loads(body["body"])
    assert (problem["code"], num_parts) == ("REQUEST_TIMEOUT", 6)
    assert "for 0.2 s after the first 10" in problem["detail"]
    assert not list(settings.data_folder.rglob("*"))


def test_a_request_may_wait_longer_for_its_answer_than_its_body_may_pause(settings):
    patient = settings.model_copy(update={"api_body_timeout_s": 0.05, "api_wait_s": 0.3})
    with TestClient(create_app(patient), base_url=ADDRESS) as http:
        assert http.post("/v1/predict/single", json=series()).json()["code"] == "TIMEOUT"
