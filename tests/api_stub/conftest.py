"""Fixtures: the app on a real Redis in this process, and a stand-in for a worker."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from redis import Redis

from api_stub.backend import Backend
from api_stub.main import create_app
from api_stub.settings import ApiSettings
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.names import job_key, result_key
from kronos_client.contract.schemas import example
from kronos_client.contract.worker_status import WORKER_STATUS
from kronos_client.redis.routing import announce

ADDRESS = "http://127.0.0.1:8000"

STATUS = WORKER_STATUS.validate_python(example("worker-status") | {"node": "worker@test"})


@pytest.fixture
def settings(redis: Redis, redis_server: LocalRedis, tmp_path: Path) -> ApiSettings:
    """Default settings, without the environment. Requests do not wait, because no worker runs."""
    settings = ApiSettings.model_construct().with_redis_url(redis_server.url)
    return settings.model_copy(update={"api_wait_s": 0, "data_folder": tmp_path / "data"})


@pytest.fixture
def http(settings: ApiSettings) -> Iterator[TestClient]:
    """A client that takes the addresses of jobs that are not done."""
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        client.headers["Prefer"] = "respond-async"
        yield client


class Jobs:
    """Stands in for a worker: stores and publishes the states of jobs."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def sent(self) -> list[dict[str, Any]]:
        """The jobs in the queues, the oldest first, with their ids."""
        found = []
        for queue in ("cpu", "cpu.finetune"):
            for priority in ("", "\x06\x163", "\x06\x166"):
                for text in reversed(self._redis.lrange(queue + priority, 0, -1)):
                    message = json.loads(text)
                    body = json.loads(base64.b64decode(message["body"]))
                    found.append(body[1]["job"] | {"id": message["headers"]["id"]})
        return found

    def publish(self, job_id: str, status: str, result: Any) -> None:
        meta = json.dumps({"status": status, "result": result, "task_id": job_id, "children": []})
        if status in ("SUCCESS", "FAILURE"):
            self._redis.hset(job_key(job_id), "ended_at", str(self._redis.time()[0]))
        self._redis.set(result_key(job_id), meta)
        self._redis.publish(result_key(job_id), meta)

    def fail(self, job_id: str, code: str, message: str, field: str | None = None, **details: Any) -> None:
        error = {"exc_type": "JobError", "exc_module": "kronos_client.contract.errors"}
        self.publish(job_id, "FAILURE", error | {"exc_message": [code, message, field, details]})

    def finish(self, job_id: str, result: dict[str, Any] | None = None) -> dict[str, Any]:
        result = result or example("forecast-result")
        self.publish(job_id, "SUCCESS", result)
        return result


@pytest.fixture
def jobs(redis: Redis) -> Jobs:
    return Jobs(redis)


@pytest.fixture
def ready_worker(redis: Redis) -> None:
    """Announces a worker that does not exist."""
    announce(redis, STATUS)


def series(num_candles: int = 8, num_future: int = 3, **fields: Any) -> dict[str, Any]:
    """A request for one prediction of five-minute bars."""
    times = [f"2024-06-18T{9 + minute // 60:02}:{minute % 60:02}:00" for minute in range(0, 5 * 100, 5)]
    candles = [
        {"open": 100.0 + bar, "high": 102.0 + bar, "low": 99.0 + bar, "close": 101.0 + bar, "volume": 10.0}
        for bar in range(num_candles)
    ]
    return {
        "series_id": "AAPL",
        "candles": candles,
        "timestamps": times[:num_candles],
        "prediction_timestamps": times[num_candles : num_candles + num_future],
        **fields,
    }


def asgi_answer(
    settings: ApiSettings, path: str, receive: Callable[[], Awaitable[dict[str, Any]]], **headers: str
) -> list[dict[str, Any]]:
    """What the app sends to a POST. It is called directly: the test client only sends whole bodies."""
    messages: list[dict[str, Any]] = []
    is_file = path == "/v1/datasets"
    media_type, query = ("text/csv", b"name=a.csv") if is_file else ("application/json", b"")
    given = {"host": "localhost", "content-type": media_type, **headers}

    async def send(message: Any) -> None:
        messages.append(message)

    async def ask() -> None:
        app = create_app(settings)
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
            "raw_path": path.encode(), "query_string": query, "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 1),
        }  # fmt: skip
        async with Backend(settings) as backend:
            app.state.backend = backend
            await app(scope, receive, send)

    asyncio.run(ask())
    return messages
