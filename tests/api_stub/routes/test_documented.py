"""Large bodies are read and checked off the event loop, with the same answers."""

import asyncio
import json

import pytest
from pydantic import BaseModel, model_validator

from api_stub.routes import documented
from kronos_client.contract.schemas import example
from tests.api_stub.conftest import series


def is_on_the_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@pytest.fixture
def seen(monkeypatch) -> list[bool]:
    """For each body read, whether it was read on the event loop."""
    found: list[bool] = []
    read = json.loads

    def record(*arguments, **options):
        found.append(is_on_the_loop())
        return read(*arguments, **options)

    monkeypatch.setattr(documented.json, "loads", record)
    return found


BODIES = {
    "/v1/predict/single": series(),
    "/v1/predict/batch": {"items": [series()]},
    "/v1/forecasts": example("forecast-job"),
    "/v1/finetunes": example("finetune-job"),
}


@pytest.mark.parametrize(("path", "body"), BODIES.items(), ids=BODIES.keys())
def test_a_large_body_is_not_read_on_the_event_loop(http, seen, path, body):
    padded = json.dumps(body) + " " * documented.LARGE_BYTES
    assert len(padded) > documented.LARGE_BYTES
    answer = http.post(path, content=padded, headers={"Content-Type": "application/json"})
    assert answer.status_code == 202
    assert seen
    assert not any(seen)


def test_a_body_is_not_checked_on_the_event_loop():
    found: list[bool] = []

    class Noting(BaseModel):
        @model_validator(mode="after")
        def note(self) -> "Noting":
            found.append(is_on_the_loop())
            return self

    asyncio.run(documented.checked(Noting, {}))
    assert found == [False]


@pytest.mark.parametrize("content", ["{", "[1]", "null", '"x"', '{"items": 3}', '{"items": [1]}', "{}"])
def test_errors_in_large_bodies_are_those_of_small_ones(http, content):
    answers = [
        http.post(
            "/v1/predict/batch", content=content + padding, headers={"Content-Type": "application/json"}
        ).json()
        for padding in ("", " " * documented.LARGE_BYTES)
    ]
    assert answers[0]["status"] in (400, 422)
    for name in ("status", "code", "field"):
        assert answers[0][name] == answers[1][name]
