"""Every code has a status, and every error is a problem document."""

from http import HTTPStatus

import pytest

from api_stub import problems
from api_stub.problems import STATUSES, HttpCode, problem, status_of
from kronos_client.contract.errors import ErrorCode


def test_every_code_has_a_status_and_no_other_has():
    assert set(STATUSES) == set(ErrorCode) | set(HttpCode)
    assert all(isinstance(status, HTTPStatus) and status >= 400 for status in STATUSES.values())


def test_no_code_of_http_is_a_code_of_jobs():
    assert not set(HttpCode) & set(ErrorCode)


def test_a_code_of_a_newer_worker_is_a_defect_here():
    assert status_of("NEVER_HEARD_OF") == 500


@pytest.mark.parametrize("code", sorted(STATUSES))
def test_a_problem_has_what_rfc_9457_wants(code):
    response = problem(code, "so it is", "candles.0.high", {"retry_after_s": 7}, job_id="x")
    assert response.media_type == "application/problem+json"
    content = problems.Problem.model_validate_json(response.body)
    assert content.type == f"urn:kronos:error:{code}"
    assert content.status == response.status_code == STATUSES[code]
    assert content.title == HTTPStatus(response.status_code).phrase
    assert (content.code, content.field, content.detail) == (code, "candles.0.high", "so it is")
    assert response.headers["x-job-id"] == "x"
    retry = {429: "7", 503: str(problems.UNAVAILABLE_RETRY_S)}.get(response.status_code)
    assert response.headers.get("retry-after") == retry
