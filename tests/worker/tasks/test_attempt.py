"""What Celery's request does with a task's exception."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery.app.task import Context
from celery.exceptions import Reject

from kronos_client.celery_app import make_app
from kronos_client.redis.queues import delivery_keys
from tests.result_backends import with_result_backend
from worker.broker import transport
from worker.broker.result_backend import tag_of
from worker.tasks.attempt import ClaimedRequest, Requeued


class FakeMessage:
    """A message like kombu's, of a task without arguments."""

    body = b"[[], {}, {}]"
    content_type, content_encoding = "application/json", "utf-8"

    def __init__(self, delivery_tag: str, **headers: Any) -> None:
        self.delivery_tag = delivery_tag
        self.payload: list[Any] = [[], {}, {}]
        self.delivery_info = {"routing_key": "cpu"}
        self.properties = {"delivery_tag": self.delivery_tag}
        self.headers = {"id": "job", "task": "test.run"} | headers


@pytest.fixture
def delays(monkeypatch) -> list[tuple[str, float]]:
    calls: list[tuple[str, float]] = []
    consumer = SimpleNamespace(delay=lambda *call: calls.append(call))
    monkeypatch.setattr(transport, "message_consumer", lambda: consumer)
    return calls


@pytest.fixture
def rejected() -> list[bool]:
    return []


@pytest.fixture
def make_request(settings, delays, rejected):
    with make_app(settings) as app:
        with_result_backend(app, delivery_keys("test.unacked"))

        @app.task(name="test.run", shared=False, acks_late=True)
        def run() -> None:
            """Nothing."""

        def make(tag: str = "tag", **headers: Any) -> ClaimedRequest:
            return ClaimedRequest(
                FakeMessage(tag, **headers),
                app=app,
                task=app.tasks["test.run"],
                on_reject=lambda logger, errors, requeue: rejected.append(requeue),
            )

        yield make


def fail(request: ClaimedRequest, error: Exception) -> None:
    """The failure as the pool reports it."""
    try:
        raise error
    except Exception:  # noqa: BLE001  any that a task or the pool raises
        request.on_failure(ExceptionInfo(), return_ok=True)


def test_the_tag_is_that_of_the_delivery_not_of_the_sender(make_request):
    request = make_request(properties={"delivery_tag": "theirs"})
    assert tag_of(Context(request.request_dict)) == "tag"


def test_inspect_shows_a_jobs_arguments_in_short(make_request):
    request = make_request(argsrepr="()", kwargsrepr="{'series': 'BTC'}")
    request._args, request._kwargs = (), {"job": {"series": [{"open": [1.0] * 500}]}}
    assert (request.info()["args"], request.info()["kwargs"]) == ("()", "{'series': 'BTC'}")


def test_a_job_handed_back_comes_again_after_its_delay(make_request, delays, rejected):
    fail(make_request(), Requeued("held", delay_s=2.5))
    assert (delays, rejected) == ([("tag", 2.5)], [True])


@pytest.mark.parametrize("error", [Requeued("at once"), Reject("as ever", requeue=True)])
def test_without_delay_it_comes_again_at_once(make_request, delays, rejected, error):
    fail(make_request(), error)
    assert (delays, rejected) == ([], [True])


def test_a_job_that_goes_back_is_one_line_in_the_log(caplog):
    celerys = logging.getLogger("celery.app.trace")
    for error in (Requeued("the engine has stopped"), ValueError("a defect")):
        try:
            raise error
        except (Requeued, ValueError):  # as Celery does
            celerys.warning("Task kronos.forecast[a] %s", error, exc_info=True)
    handed_back, failed = caplog.records
    assert handed_back.getMessage() == "Task kronos.forecast[a] the engine has stopped"
    assert handed_back.exc_info is None
    assert failed.exc_info is not None
