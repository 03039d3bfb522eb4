"""A stopping service answers waiting requests, and the jobs go on."""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.names import job_key
from kronos_client.contract.schemas import example
from tests.api_process import ApiUnderTest
from tests.api_stub.conftest import series

NUM_WAITING = 8
TIMEOUT_S = 120


@pytest.fixture
def service(redis: Redis, redis_server: LocalRedis, tmp_path: Path) -> Iterator[ApiUnderTest]:
    """The API as a process in which requests wait for a minute."""
    service = ApiUnderTest(redis_server.url, tmp_path / "api.log", {"KRONOS_API_WAIT_S": "60"})
    yield service
    service.stop()
    assert "Traceback" not in service.log.read_text()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_waiting_requests_are_answered_with_the_jobs_address(service, jobs, redis):
    process, address = service.process, service.url.rstrip("/")
    with ThreadPoolExecutor(NUM_WAITING + 2) as threads:
        waiting = [
            threads.submit(
                httpx2.post,
                f"{address}/v1/predict/single",
                json=series(),
                headers={"Prefer": "respond-async, wait=60"} if takes_job else {},
                timeout=TIMEOUT_S,
            )
            for takes_job in [True] * NUM_WAITING + [False]
        ]
        job_id = httpx2.post(f"{address}/v1/forecasts", json=example("forecast-job")).json()["id"]
        events = threads.submit(httpx2.get, f"{address}/v1/forecasts/{job_id}/events", timeout=TIMEOUT_S)
        # Every request has begun to wait.
        metric = f"kronos_http_jobs_waited_for {NUM_WAITING + 2}.0"
        until(lambda: metric in httpx2.get(f"{address}/metrics").text)
        process.send_signal(signal.SIGTERM)
        *answers, refused = [asked.result(TIMEOUT_S) for asked in waiting]
        # In less than STOP_S, after which the server would cancel them.
        stream = events.result(TIMEOUT_S)
    assert process.wait(TIMEOUT_S) in (0, -signal.SIGTERM)
    assert {answer.status_code for answer in answers} == {202}
    assert (refused.status_code, refused.json()["code"]) == (503, "OVERLOADED")
    left = {job["id"] for job in jobs.sent() if not redis.hexists(job_key(job["id"]), "ended_at")}
    assert left == {answer.json()["id"] for answer in answers} | {job_id}
    assert refused.json()["job_id"] not in left
    assert all(answer.headers["location"] == answer.json()["url"] for answer in answers)
    assert (stream.status_code, stream.text.count("event: ")) == (200, 1)
