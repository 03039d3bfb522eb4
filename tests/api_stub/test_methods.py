"""Answers to methods that an address does not take."""

import pytest


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/predict/single", "POST"),
        ("/v1/forecasts", "POST"),
        ("/v1/forecasts/some-id", "DELETE, GET"),
        ("/v1/datasets", "GET, POST"),
        ("/v1/healthz", "GET"),
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
