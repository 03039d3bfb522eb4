"""Webhooks are sent when their jobs end, signed, and again if their receiver fails."""

import base64
import json
import logging
import queue
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from api_stub.main import create_app
from api_stub.webhooks import sender
from api_stub.webhooks.sender import signed_headers
from kronos_client.contract.names import WEBHOOKS_KEY, webhook_key
from kronos_client.contract.schemas import example
from tests.api_stub.conftest import ADDRESS
from tests.waiting import WAIT_S

SECRET = b"a secret of twenty-four bytes or more"
JOB = example("forecast-job")


class Receiver:
    """A server that notes what it receives, and answers with these statuses, then 200."""

    def __init__(self, *statuses: int) -> None:
        self.received: queue.Queue[tuple[str, dict[str, str], bytes]] = queue.Queue()
        self.statuses = list(statuses)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.put((self.path, headers, body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server.server_port}/hook?id=7"

    def next(self) -> tuple[str, dict[str, str], bytes]:
        return self.received.get(timeout=WAIT_S)


@pytest.fixture
def receiver(monkeypatch) -> Iterator[Receiver]:
    monkeypatch.setattr(sender, "PAUSES_S", (0, 0))
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@pytest.fixture
def calling(settings) -> Iterator[TestClient]:
    """A client of an API that may call this machine."""
    secret = SecretStr(base64.b64encode(SECRET).decode())
    changes = {"webhook_secret": secret, "webhook_networks": "127.0.0.0/8,::1"}
    with TestClient(create_app(settings.model_copy(update=changes)), base_url=ADDRESS) as client:
        yield client


def wait_until_sent(redis) -> None:
    while redis.exists(WEBHOOKS_KEY):
        time.sleep(0.01)


def test_the_end_of_a_job_is_sent_and_signed(calling, jobs, redis, receiver):
    job_id = calling.post("/v1/forecasts", json=JOB | {"webhook": receiver.url}).json()["id"]
    (sent,) = jobs.sent()
    assert "webhook" not in sent
    jobs.publish(job_id, "PROGRESS", {"bars_done": 1, "bars_total": 2})
    jobs.finish(job_id)
    path, headers, body = receiver.next()
    url = f"/v1/forecasts/{job_id}"
    assert json.loads(body) == {
        "type": "forecast.done", "id": job_id, "state": "done", "url": url, "error": None,
    }  # fmt: skip
    assert (path, headers["content-type"]) == ("/hook?id=7", "application/json")
    assert headers["host"] == f"localhost:{receiver.server.server_port}"
    timestamp_s = int(headers["webhook-timestamp"])
    signed = signed_headers(SECRET, headers["webhook-id"], timestamp_s, body)
    assert headers["webhook-signature"] == signed["webhook-signature"]
    wait_until_sent(redis)
    assert not redis.exists(webhook_key(job_id))
    assert receiver.received.empty()


def test_a_webhook_is_sent_again_under_its_id_until_it_is_taken(calling, jobs, redis, receiver):
    receiver.statuses = [503, 302]
    job = example("finetune-job") | {"webhook": receiver.url}
    job_id = calling.post("/v1/finetunes", json=job).json()["id"]
    jobs.fail(job_id, "TRAINING_DIVERGED", "the loss is not finite")
    tries = [receiver.next() for _ in range(3)]
    assert {path for path, _, _ in tries} == {"/hook?id=7"}  # redirects are not followed
    assert len({headers["webhook-id"] for _, headers, _ in tries}) == 1
    content = json.loads(tries[-1][2])
    assert (content["type"], content["error"]["code"]) == ("finetune.failed", "TRAINING_DIVERGED")
    wait_until_sent(redis)


def test_a_webhook_that_nobody_takes_is_given_up(calling, jobs, redis, receiver, caplog):
    receiver.statuses = [500] * 9
    job_id = calling.post("/v1/forecasts", json=JOB | {"webhook": receiver.url}).json()["id"]
    calling.delete(f"/v1/forecasts/{job_id}")
    wait_until_sent(redis)
    assert receiver.received.qsize() == 3
    assert "is given up after 3 attempts: its receiver answered 500" in caplog.text


def test_a_name_of_a_private_address_is_never_called(settings, jobs, redis, receiver, caplog):
    secret = SecretStr(base64.b64encode(SECRET).decode())
    app = create_app(settings.model_copy(update={"webhook_secret": secret}))
    with TestClient(app, base_url=ADDRESS) as http, caplog.at_level(logging.WARNING):
        job_id = http.post("/v1/forecasts", json=JOB | {"webhook": receiver.url}).json()["id"]
        jobs.finish(job_id)
        wait_until_sent(redis)
    assert receiver.received.empty()
    assert "is not a public address" in caplog.text


def test_the_webhooks_of_a_process_that_died_are_sent_by_the_next(
    settings, http, jobs, redis, receiver, calling
):
    job_id = http.post("/v1/forecasts", json=JOB).json()["id"]
    jobs.finish(job_id)
    redis.set(webhook_key(job_id), f"/v1/forecasts/{job_id} {receiver.url}")
    redis.zadd(WEBHOOKS_KEY, {job_id: 0, "a job that Redis lost": 0})
    changed = {
        "webhook_secret": SecretStr(base64.b64encode(SECRET).decode()),
        "webhook_networks": "127.0.0.0/8 ::1",
    }
    with TestClient(create_app(settings.model_copy(update=changed)), base_url=ADDRESS):
        assert json.loads(receiver.next()[2])["id"] == job_id
        wait_until_sent(redis)


def test_what_a_living_process_holds_is_not_taken(settings, redis, calling, receiver, jobs):
    job_id = calling.post("/v1/forecasts", json=JOB | {"webhook": receiver.url}).json()["id"]
    held = calling.app.state.webhooks._take([])
    assert held == []
    redis.zadd(WEBHOOKS_KEY, {job_id: 1})
    assert calling.app.state.webhooks._take([job_id]) == []
    assert redis.zscore(WEBHOOKS_KEY, job_id) > 1
    jobs.finish(job_id)
    receiver.next()


@pytest.mark.parametrize("webhook", ["http://127.0.0.1/", "not a url", 3])
def test_without_a_secret_or_with_a_private_address_a_job_is_refused(http, settings, jobs, webhook):
    off = http.post("/v1/forecasts", json=JOB | {"webhook": "https://example.org/"})
    assert (off.status_code, off.json()["field"]) == (422, "webhook")
    assert "KRONOS_WEBHOOK_SECRET" in off.json()["detail"]
    secret = SecretStr(base64.b64encode(SECRET).decode())
    with TestClient(
        create_app(settings.model_copy(update={"webhook_secret": secret})), base_url=ADDRESS
    ) as on:
        answer = on.post("/v1/forecasts", json=JOB | {"webhook": webhook})
    assert (answer.status_code, answer.json()["field"]) == (422, "webhook")
    assert jobs.sent() == []
