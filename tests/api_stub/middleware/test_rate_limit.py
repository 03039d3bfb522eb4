"""Requests a minute of each key."""

import math
import time

import pytest
from fastapi.testclient import TestClient

from api_stub.main import create_app
from tests.api_stub.conftest import ADDRESS
from tests.api_stub.test_keys import KEY, OTHER_KEY, with_keys

LIMIT = 3
PATH = "/v1/models"
HEADERS = ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def processes(settings):
    """Two processes of the API with one Redis."""
    limited = with_keys(settings, api_requests_per_minute=LIMIT)
    with (
        TestClient(create_app(limited), base_url=ADDRESS) as one,
        TestClient(create_app(limited), base_url=ADDRESS) as other,
    ):
        yield one, other


def test_each_key_has_its_number_of_requests_over_all_processes(processes, redis):
    one, other = processes
    began = time.monotonic()
    answers = [http.get(PATH, headers=bearer(KEY)) for http in (one, other, one, other, one)]
    elapsed_s = math.ceil(time.monotonic() - began)
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    limits, lefts, resets = zip(
        *([int(answer.headers[name]) for name in HEADERS] for answer in answers), strict=True
    )
    assert limits == (LIMIT,) * 5
    assert lefts == (2, 1, 0, 0, 0)
    for reset_s, used in zip(resets, (1, 2, 3, 3, 3), strict=True):
        assert 20 * used - elapsed_s <= reset_s <= 20 * used
    refused = answers[-1]
    assert refused.json()["code"] == "RATE_LIMITED"
    wait_s = int(refused.headers["retry-after"])
    assert refused.json()["details"] == {"limit": LIMIT, "retry_after_s": wait_s}
    assert 20 - elapsed_s <= wait_s <= 20
    assert one.get(PATH, headers=bearer(OTHER_KEY)).status_code == 200
    keys = redis.keys("kronos:rate:*")
    assert len(keys) == 2
    assert not any(KEY in key or OTHER_KEY in key for key in keys)
    assert all(0 < redis.ttl(key) <= 60 for key in keys)


def test_a_request_has_room_again_when_its_share_of_the_minute_has_passed(processes, redis):
    http = processes[0]
    for _ in range(LIMIT):
        http.get(PATH, headers=bearer(KEY))
    (key,) = redis.keys("kronos:rate:*")
    redis.set(key, float(redis.get(key)) - 20)
    assert [http.get(PATH, headers=bearer(KEY)).status_code for _ in range(2)] == [200, 429]
    redis.set(key, 1e12)  # Redis's clock went back
    assert int(http.get(PATH, headers=bearer(KEY)).headers["retry-after"]) <= 20


def test_a_key_is_limited_however_its_header_is_written(processes, redis):
    headers = [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER   {KEY}", f"bEaReR \t{KEY}"]
    answers = [processes[0].get(PATH, headers={"Authorization": header}) for header in headers]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert len(redis.keys("kronos:rate:*")) == 1


def test_without_keys_all_requests_count_together(settings, redis):
    limited = settings.model_copy(update={"api_requests_per_minute": LIMIT})
    with TestClient(create_app(limited), base_url=ADDRESS) as http:
        answers = [http.get(PATH, headers=bearer(f"{KEY}{number}")) for number in range(LIMIT + 1)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert len(redis.keys("kronos:rate:*")) == 1


def test_probes_the_page_and_wrong_keys_do_not_count(processes, redis):
    http = processes[0]
    for path in ("/v1/healthz", "/", PATH):
        assert "ratelimit-limit" not in http.get(path).headers
    for number in range(LIMIT + 1):
        assert http.get(PATH, headers=bearer(f"{KEY}{number}")).status_code == 401
    assert redis.keys("kronos:rate:*") == []


def test_without_a_limit_there_are_no_headers(http):
    assert "ratelimit-limit" not in http.get(PATH).headers


def test_if_redis_does_not_answer_the_request_goes_on(processes, redis, caplog):
    redis.config_set("maxclients", 1)
    redis.client_kill_filter(skipme=True)
    try:
        answer = processes[0].get(PATH, headers=bearer(KEY))
    finally:
        redis.config_set("maxclients", 10000)
    assert answer.json()["code"] == "BROKER_UNREACHABLE"  # of the route
    assert "the rate limit is not enforced" in caplog.text
