"""Answers to methods that an address does not take."""

import pytest

from tests.api_stub.conftest import series


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/predict/single", "POST"),
        ("/v1/forecasts", "GET, HEAD, POST"),
        ("/v1/forecasts/some-id", "DELETE, GET, HEAD"),
        ("/v1/models/load", "POST"),
        ("/v1/datasets", "GET, HEAD, POST"),
        ("/v1/healthz", "GET, HEAD"),
    ],
)
def test_all_methods_of_an_address_are_named(http, path, allowed):
    for method in ("PUT", "PATCH", "OPTIONS"):
        answer = http.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
        assert answer.headers["allow"] == allowed


def test_an_unknown_address_is_not_found_with_any_method(http):
    for method in ("GET", "POST", "DELETE"):
        answer = http.request(method, "/v1/no/such/thing")
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


def test_head_is_answered_as_get_without_the_body(http):
    for path in ("/v1/healthz", "/v1/readyz", "/metrics", "/v1/forecasts/x", "/", "/docs"):
        head, get = http.head(path), http.get(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert head.headers["content-type"] == get.headers["content-type"]


def test_head_of_an_event_stream_does_not_wait(http, jobs):
    accepted = http.post("/v1/predict/single", json=series()).json()
    assert http.head(f"{accepted['url']}/events").status_code == 405
