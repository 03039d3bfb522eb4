"""Every code has a status, and every error is a problem document."""

from http import HTTPStatus

import pytest

from api_stub import problems
from api_stub.problems import STATUSES, HttpCode, HttpError, status_of
from kronos_client.contract.errors import ErrorCode


def test_exactly_the_known_codes_have_a_status():
    assert set(STATUSES) == set(ErrorCode) | set(HttpCode), "list each code once in _CODES of problems.py"
    assert all(isinstance(status, HTTPStatus) and status >= 400 for status in STATUSES.values())


def test_codes_of_http_and_of_jobs_differ():
    assert not set(HttpCode) & set(ErrorCode)


def test_an_unknown_code_is_a_500():
    assert status_of("A_CODE_OF_A_NEWER_WORKER") == 500


@pytest.mark.parametrize("code", sorted(STATUSES))
def test_a_problem_has_the_fields_of_rfc_9457(code):
    error = HttpError(code, "so it is", "candles.0.high", {"retry_after_s": 7}, job_id="x")
    response = error.response()
    assert response.media_type == "application/problem+json"
    content = problems.Problem.model_validate_json(response.body)
    assert content.type == f"urn:kronos:error:{code}"
    assert content.status == response.status_code == STATUSES[code]
    assert content.title == HTTPStatus(response.status_code).phrase
    assert (content.code, content.field, content.detail) == (code, "candles.0.high", "so it is")
    assert response.headers["x-job-id"] == "x"
    retry = {429: "7", 503: str(problems.UNAVAILABLE_RETRY_S)}.get(response.status_code)
    assert response.headers.get("retry-after") == retry


@pytest.mark.parametrize(
    ("address", "unknown"),
    [
        ("/v1/forecasts?limt=2", "limt"), ("/v1/forecasts?limit=2", None),
        ("/v1/forecasts/file?pred_len=3&drop_bad_row=true&webhook=", "drop_bad_row"),
        ("/v1/forecasts/file?predlen=3", "predlen"),
        ("/v1/workers?x=", "x"), ("/?utm_source=mail", None),
    ],
)  # fmt: skip
def test_a_query_parameter_that_an_address_does_not_have_is_refused(http, address, unknown):
    answer = http.request("POST" if "file" in address else "GET", address)
    if unknown is None:
        assert answer.status_code < 400
        return
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (
        422,
        "UNKNOWN_FIELD",
        unknown,
    )
    if unknown == "predlen":
        assert answer.json()["detail"].endswith("; did you mean pred_len?")
    answer = http.put("/v1/feeds/us", json={"predlen": 3}).json()
    assert answer["detail"].endswith("; did you mean pred_len?")


def test_what_is_not_json_is_named_with_its_place(http):
    headers = {"Content-Type": "application/json"}
    answer = http.post("/v1/forecasts", content='{"pred_len": 3,\n "top_p": .9}', headers=headers).json()
    assert answer["code"] == "INVALID_JSON"
    assert answer["detail"] == "the body is not JSON: Expecting value: line 2 column 11 (char 26)"
