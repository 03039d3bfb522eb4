"""Bodies that are too large, and those that stop arriving."""

import asyncio
import gzip
import json

import pytest
from fastapi.testclient import TestClient

from api_stub.main import create_app
from tests.api_stub.conftest import ADDRESS, asgi_answer, series

PATHS = ["/v1/forecasts", "/v1/datasets"]


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

    assert asgi_answer(small, path, receive)[0]["status"] == 413
    assert limit < num_bytes <= limit + 512
    assert not list(settings.data_folder.rglob("*"))


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_stops_arriving_is_refused_and_its_connection_closed(settings, path):
    impatient = settings.model_copy(update={"api_body_timeout_s": 1, "api_body_bytes_per_s": 1})
    num_parts = 0

    async def receive():
        nonlocal num_parts
        num_parts += 1
        await asyncio.sleep(0.25 if num_parts < 6 else 60)  # slower in all than the limit for one pause
        return {"type": "http.request", "body": b"[[", "more_body": True}

    start, body = asgi_answer(impatient, path, receive)
    assert (start["status"], dict(start["headers"])[b"connection"]) == (408, b"close")
    problem = json.loads(body["body"])
    assert (problem["code"], num_parts) == ("REQUEST_TIMEOUT", 6)
    assert "pause for 1 s" in problem["detail"]
    assert "after 10 bytes" in problem["detail"]
    assert not list(settings.data_folder.rglob("*"))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("num_first", [1, 100_000])
def test_a_body_that_trickles_is_refused_though_no_pause_is_long(settings, path, num_first):
    """Bytes that came fast at first do not allow all later ones to come slowly."""
    strict = settings.model_copy(update={"api_body_timeout_s": 0.5, "api_body_bytes_per_s": 1000})
    num_parts = 0

    async def receive():
        nonlocal num_parts
        num_parts += 1
        assert num_parts < 100, "the app reads on"
        await asyncio.sleep(0 if num_parts == 1 else 0.1)
        return {
            "type": "http.request",
            "body": b"[" * (num_first if num_parts == 1 else 1),
            "more_body": True,
        }

    start, body = asgi_answer(strict, path, receive)
    assert (start["status"], dict(start["headers"])[b"connection"]) == (408, b"close")
    assert "fewer than 1000 bytes a second" in json.loads(body["body"])["detail"]
    assert not list(settings.data_folder.rglob("*"))


def test_the_rate_counts_bytes_as_sent(settings):
    """A trickle of compressed bytes must not count as what it decodes to."""
    strict = settings.model_copy(update={"api_body_timeout_s": 0.5, "api_body_bytes_per_s": 20_000})
    packed = gzip.compress(b" " * 2**22)
    num_parts = 0

    async def receive():
        nonlocal num_parts
        num_parts += 1
        assert num_parts < 100, "the app reads on"
        await asyncio.sleep(0.1)
        part = packed[num_parts * 40 - 40 : num_parts * 40]
        return {"type": "http.request", "body": part, "more_body": True}

    start, _ = asgi_answer(strict, "/v1/forecasts", receive, **{"content-encoding": "gzip"})
    assert start["status"] == 408


def test_a_request_may_wait_longer_for_its_answer_than_its_body_may_pause(settings):
    patient = settings.model_copy(update={"api_body_timeout_s": 0.05, "api_wait_s": 0.3})
    with TestClient(create_app(patient), base_url=ADDRESS) as http:
        assert http.post("/v1/predict/single", json=series()).json()["code"] == "TIMEOUT"
